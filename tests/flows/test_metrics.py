"""/metrics of a running bot: one endpoint counts for web and workers, and it needs the token."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.config.processes import free_port
from tests.docs.pages import ROOT
from tests.docs.test_metrics_reference import SHOWN
from tests.flows.conftest import METRICS_TOKEN
from tests.flows.system import System, TelegramPerson, until


def scrape(system: System, token: str = METRICS_TOKEN) -> dict[tuple[str, ...], float]:
    """Return the samples that the web serves on its own port: name and values of the labels."""
    answer = system.http.get(f"{system.url}/metrics", headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code == 200, answer.text
    families = text_string_to_metric_families(answer.text)
    return {
        (s.name, *(v for _, v in sorted(s.labels.items()))): s.value
        for each in families
        for s in each.samples
    }


def test_a_whole_story_is_counted_over_all_processes(system: System) -> None:
    """Repeated webhooks, a tool call, a question, a no: the port of the web has the counts of the workers, too."""
    before = scrape(system)

    def grown(*sample: str) -> float:
        return scrape(system).get(sample, 0.0) - before.get(sample, 0.0)

    person = TelegramPerson(system, 811)
    person.say("find invoice INV-42")
    person.hears()
    person.say("delete invoice INV-58")
    person.hears()
    person.say("no")
    person.hears()
    # At least, since entries of earlier tests may be collected now.
    until(lambda: grown("sayso_pending_actions_total", "ops-tg", "cancelled") >= 1)
    assert grown("sayso_webhooks_total", "ops-tg", "stored") == 6
    assert grown("sayso_turns_received_total", "ops-tg", "new") == 3
    assert grown("sayso_turns_received_total", "ops-tg", "duplicate") == 3
    assert grown("sayso_turns_total", "ops-tg", "answered") == 3
    assert grown("sayso_tool_calls_total", "ok", "find_invoice") == 1
    assert grown("sayso_pending_answer_seconds_count", "ops-tg") >= 1
    assert grown("sayso_deliveries_total", "ops-tg", "", "sent") >= 3
    assert grown("sayso_messages_total", "ops-tg", "free") >= 3
    after = scrape(system)
    assert (after["sayso_redis_up",], after["sayso_redis_halted",]) == (1, 0)
    assert after["sayso_workers",] >= 2
    assert after["sayso_disk_free_bytes",] > 0


def test_every_metric_of_a_running_bot_is_documented(system: System) -> None:
    """None of them contains an address of a person or of a platform."""
    text = system.http.get(
        f"{system.url}/metrics", headers={"Authorization": f"Bearer {METRICS_TOKEN}"}
    ).text
    assert set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE)) <= set(SHOWN)
    names_and_labels = re.sub(r" \S+$", "", text, flags=re.MULTILINE)  # a sum may have such digits
    assert not re.search(r"\+49|50000\d{5}|127\.0\.0\.1", names_and_labels)


def test_request_without_the_right_token_gets_401(system: System) -> None:
    """Whatever they send in place of the token."""
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": METRICS_TOKEN}):
        answer = system.http.get(f"{system.url}/metrics", headers=headers)
        assert (answer.status_code, "sayso_" in answer.text) == (401, False)


def test_a_real_prometheus_scrapes_them_and_fires_no_alert(system: System, tmp_path: Path) -> None:
    """It reads the token from a file, loads the rules, and answers the queries of the dashboard."""
    if not shutil.which("prometheus"):
        (pytest.fail if os.environ.get("CI") else pytest.skip)(
            "prometheus is missing: apt-get install prometheus"
        )
    address = system.url.removeprefix("http://")
    job: dict[str, Any] = {
        "job_name": "sayso",
        "static_configs": [{"targets": [address]}],
        "authorization": {"credentials_file": "token"},
    }
    every = {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"}
    (tmp_path / "token").write_text(METRICS_TOKEN)
    rules = [str(ROOT / "deploy" / "prometheus" / "alerts.yaml")]
    (tmp_path / "prometheus.yml").write_text(
        yaml.safe_dump({"global": every, "rule_files": rules, "scrape_configs": [job]})
    )
    port = free_port()
    command = [
        "prometheus",
        "--config.file=prometheus.yml",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(
            [*command, "--storage.tsdb.path=data"], cwd=tmp_path, stdout=log, stderr=log
        )
    try:

        def value(query: str) -> float | None:
            try:
                answer = system.http.get(
                    f"http://127.0.0.1:{port}/api/v1/query", params={"query": query}
                ).json()
            except (httpx.HTTPError, ValueError):  # it is starting
                return None
            found = answer["data"]["result"]
            return float(found[0]["value"][1]) if found else None

        until(lambda: value('up{job="sayso"}') == 1)
        TelegramPerson(system, 812).say("find invoice INV-42")
        until(
            lambda: value(
                'increase(sayso_turns_total{channel="ops-tg", outcome="answered"}[1m]) > 0'
            )
        )
        assert (value("max(sayso_workers)") or 0) >= 2
        assert value('count({__name__=~"sayso_.*_bucket"}) > 100')
        assert value('ALERTS{alertstate="firing"}') is None
    finally:
        server.terminate()
        server.wait()
