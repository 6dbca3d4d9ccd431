"""deploy/prometheus and deploy/grafana: the rules fire when they should, and every query names metrics that exist."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.pages import ROOT
from tests.docs.test_metrics_reference import SHOWN

FOLDER = ROOT / "deploy" / "prometheus"
RULES = yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"][0]["rules"]
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "sayso.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
#: The address of the documentation, as pyproject.toml names it.
DOCS = "https://example.com/sayso/docs/"
#: What Grafana puts in place of its variables.
VARIABLES = {"$__rate_interval": "5m", "$channel": ".*"}


def type_errors(folder: Path, **dashboards: dict[str, Any]) -> str:
    """Return what TypeScript says of dashboards by Grafana's types. Skips the test without them, and fails it in CI."""
    here = Path(__file__).parent / "grafana"
    if not (here / "node_modules").exists():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(
            f"Grafana's types are missing: npm install --prefix {here}"
        )
    form = (
        (here / "dashboard.ts")
        .read_text()
        .replace("SCHEMA", f"{here}/node_modules/@grafana/schema/dist/types/raw")
    )
    files = [folder / f"{name}.ts" for name in dashboards]
    for file, dashboard in zip(files, dashboards.values(), strict=True):
        file.write_text(form + json.dumps(dashboard, indent=1))
    options = "--noEmit --strict --skipLibCheck --module esnext --moduleResolution bundler --target es2022"
    compiler = here / "node_modules/.bin/tsc"
    return subprocess.run(
        [compiler, *options.split(), *files], capture_output=True, text=True, check=False
    ).stdout


def promtool(*args: str | Path) -> str:
    """Run promtool. Skips the test where it is missing, and fails it in CI."""
    if not shutil.which("promtool"):
        (pytest.fail if os.environ.get("CI") else pytest.skip)(
            "promtool is missing: apt-get install prometheus"
        )
    done = subprocess.run(
        ["promtool", *map(str, args)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def dashboard_queries() -> Iterator[str]:
    """Return all queries of the dashboard with values for its variables."""
    for panel in PANELS:
        for target in panel["targets"]:
            query = target["expr"]
            for name, value in VARIABLES.items():
                query = query.replace(name, value)
            yield query


def metrics_in(query: str) -> set[str]:
    """Return the names of the metrics in a query; of a histogram's series, the histogram's."""
    names = set(re.findall(r"\bsayso_\w+", query))
    return {name if name in SHOWN else re.sub("_(bucket|sum|count)$", "", name) for name in names}


def test_each_alert_fires_when_it_should_and_none_for_a_healthy_bot() -> None:
    """promtool runs deploy/prometheus/alerts_test.yaml, which has a case for each alert."""
    tests = yaml.safe_load((FOLDER / "alerts_test.yaml").read_text())["tests"]
    names = [rule["alert"] for rule in RULES]
    cases = [case for each in tests for case in each["alert_rule_test"]]
    assert [
        name for name in names if not any(c["alertname"] == name and c["exp_alerts"] for c in cases)
    ] == []
    assert {case["alertname"] for case in tests[0]["alert_rule_test"]} == set(names)
    assert "SUCCESS" in promtool("test", "rules", FOLDER / "alerts_test.yaml")


def test_every_query_of_the_dashboard_is_valid(tmp_path: Path) -> None:
    """promtool checks them as recording rules."""
    rules = [
        {"record": f"query{number}", "expr": query}
        for number, query in enumerate(dashboard_queries())
    ]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", file)


@pytest.mark.parametrize("query", [*dashboard_queries(), *(rule["expr"] for rule in RULES)])
def test_every_metric_in_a_query_exists(query: str) -> None:
    """A renamed metric would leave its graph empty, and its alert would never fire."""
    assert metrics_in(query) <= set(SHOWN)
    assert metrics_in(query) or query.startswith("up{")


def test_every_metric_is_on_the_dashboard() -> None:
    """An operator who looks there sees whatever is wrong, such as a full media store. The version is no graph."""
    shown = {name for query in dashboard_queries() for name in metrics_in(query)}
    assert set(SHOWN) - shown == {"sayso_build_info"}


def test_gauges_that_every_web_reports_are_never_summed() -> None:
    """They describe Redis, so a sum over two webs would be twice the value."""
    gauges = [name for name, (kind, _) in SHOWN.items() if kind == "gauge"]
    for query in [*dashboard_queries(), *(rule["expr"] for rule in RULES)]:
        assert not re.search(rf"sum( by \(\w+\) ?)?\(({'|'.join(gauges)})\b", query), query


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_each_alert_links_to_a_page_that_exists(rule: dict[str, Any]) -> None:
    """The heading in the link exists, too."""
    notes = rule["annotations"]
    assert notes["summary"]
    assert notes["cause"].endswith(".")
    assert rule["labels"]["severity"] in ("critical", "warning")
    page, _, anchor = notes["runbook_url"].removeprefix(DOCS).partition("#")
    text = (ROOT / "docs" / f"{page.rstrip('/')}.md").read_text()
    headings = re.findall("^#+ (.*)$", text, re.MULTILINE)
    assert anchor in {
        re.sub(r"[^\w\s-]", "", heading).strip().lower().replace(" ", "-") for heading in headings
    }


def test_the_dashboard_has_the_types_of_grafana(tmp_path: Path) -> None:
    """Each key and value is one that Grafana itself writes. A misspelled key would be ignored by an import."""
    wrong = json.loads(
        json.dumps(DASHBOARD).replace("colorMode", "colourMode").replace('"multi"', '"many"')
    )
    said = type_errors(tmp_path, shipped=DASHBOARD, wrong=wrong)
    assert "shipped.ts" not in said, said
    assert "'\"colourMode\"' does not exist" in said
    assert "'\"many\"' is not assignable" in said


def test_the_dashboard_has_what_grafana_needs_to_import_it() -> None:
    """Its ids are unique, its panels do not overlap, and one variable names the data source."""
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    assert (DASHBOARD["id"], DASHBOARD["uid"], DASHBOARD["schemaVersion"] >= 39) == (
        None,
        "sayso",
        True,
    )
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    sources = {target["datasource"]["uid"] for panel in PANELS for target in panel["targets"]}
    assert sources == {"${datasource}"}
    assert [each["name"] for each in DASHBOARD["templating"]["list"]] == ["datasource", "channel"]
