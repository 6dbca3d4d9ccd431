"""`sayso doctor`: it finds everything that breaks a bot, names the cure, and changes nothing."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from click.testing import CliRunner
from flask.testing import FlaskClient
from redis import Redis

from sayso.channels.registry import open_setup
from sayso.channels.setup import FORGED, CheckResult
from sayso.channels.types import Received
from sayso.config.settings.loader import load_settings
from sayso.config.wiring.ingress import poll_lock
from sayso.infra.redis.client import connect
from sayso.infra.redis.leader_lock import LeaderLock
from sayso.ops.checks.doctor import Doctor, _check_safety, check_models
from sayso.ops.cli.main import main
from sayso.ops.server.processes import UP_FILE, RunningBot, save_running_bot
from sayso.testing.platforms import fake_platforms as fakes
from sayso.testing.platforms.fake_platforms import FakePlatforms
from sayso.testing.platforms.telegram import ADMINISTRATORS
from sayso.workers.alerts import KEEP_LAST_MESSAGE_SECONDS, RedisAlerts
from sayso.workers.data_loss.watermarks import HaltReason, keys_of
from sayso.workers.recovery import Heartbeat
from tests.agent.providers.recorder import ModelRecorder
from tests.channels.web import services
from tests.config.fake_bots import ENVIRON, PUBLIC_URL, written
from tests.config.processes import free_port
from tests.contracts.rigs import turn
from tests.docs.pages import part

Handler = Callable[[httpx.Request], httpx.Response]


def our_web(mailbox: services.FakeMailbox, public_url: str = PUBLIC_URL, **secrets: str) -> Handler:
    """Return a web process with the three adapters, with other secrets where given."""
    by_name = services.real_channels(**secrets)
    client: FlaskClient = services.browser(mailbox=mailbox, public_url=public_url, channels=by_name)

    def answer(request: httpx.Request) -> httpx.Response:
        heard = client.open(
            request.url.path,
            method=request.method,
            data=request.content,
            headers=list(request.headers.items()),
        )
        return httpx.Response(heard.status_code, content=heard.data, headers=dict(heard.headers))

    return answer


TURN = turn()
#: The key prefix of a bot whose file is sayso.yaml.
PREFIX = "sayso:sayso:"


class Clinic:
    """A healthy bot that a test can break."""

    def __init__(self, folder: Path, platforms: FakePlatforms, worker: Heartbeat) -> None:
        self.folder, self.platforms = folder, platforms
        self.worker: Heartbeat | None = worker
        self.running: RunningBot | None = None
        self.mailbox = services.FakeMailbox()
        self.web = our_web(self.mailbox)
        self.config = written(folder, platforms)
        settings = load_settings(self.config)
        for name in ("wa", "tg"):
            asyncio.run(open_setup(name, settings.channels[name], PUBLIC_URL).set_webhook())

    def results(self, *, clock: Callable[[], float] = time.time) -> list[CheckResult]:
        """Return all findings of the doctor."""
        if self.worker:
            self.worker.beat()

        async def found() -> list[CheckResult]:
            async with httpx.AsyncClient(transport=httpx.MockTransport(self.web)) as web:
                doctor = Doctor(
                    load_settings(self.config),
                    self.folder,
                    web=web,
                    clock=clock,
                    running=self.running,
                )
                return [finding async for finding in doctor.results()]

        return asyncio.run(found())

    def wrong(self, **given: Any) -> dict[str, str]:
        """Return the failed checks by channel; check that each has a cure."""
        findings = [finding for finding in self.results(**given) if finding.state != "ok"]
        assert all(finding.cure for finding in findings)
        return {f"{finding.channel} {finding.check}".strip(): str(finding) for finding in findings}


@pytest.fixture(scope="module")
def durable_redis(redis_url: str) -> Iterator[None]:
    """Let the Redis of the tests write to disk, as one that a bot uses must."""
    with connect(redis_url) as client:
        client.config_set("appendonly", "yes")
        yield
        client.config_set("appendonly", "no")


@pytest.fixture
def clinic(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    durable_redis: None,
    redis_client: Redis,
    redis_url: str,
) -> Iterator[Clinic]:
    """Return a bot with Redis, a worker, the web and all three platforms."""
    for name, value in {**ENVIRON, "REDIS_URL": redis_url}.items():
        monkeypatch.setenv(name, value)
    with FakePlatforms() as platforms:
        for name in ("wa", "tg", "sl"):
            RedisAlerts(redis_client, prefix=PREFIX).record_message(name)
        yield Clinic(tmp_path, platforms, Heartbeat(redis_client, "w1", prefix=PREFIX))


def test_foreign_server_at_the_public_url_gets_no_secret(clinic: Clinic):
    """A server that accepts a forged webhook gets no valid one."""
    seen: list[httpx.Request] = []

    def stranger(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, text="Welcome to nginx!")

    clinic.web = stranger
    wrong = clinic.wrong()
    assert {"healthz", "wa signature", "tg signature", "sl signature"} == wrong.keys()
    assert "a forged webhook was answered with 200" in wrong["tg signature"]
    posted = [request for request in seen if request.method == "POST"]
    assert [request.headers.get("x-telegram-bot-api-secret-token") for request in posted].count(
        FORGED
    ) == 1
    assert not [request for request in posted if fakes.TELEGRAM_SECRET in str(request.headers)]


def test_doctor_changes_nothing(clinic: Clinic):
    """There is no turn, no message and no change of a webhook."""
    before = dict(clinic.platforms.log.state)
    clinic.results()
    assert (clinic.mailbox.turns, clinic.platforms.sent, clinic.platforms.log.state) == (
        [],
        [],
        before,
    )


def test_name_of_another_bot_is_found(clinic: Clinic):
    """With a wrong `username` the bot would not recognize its own name in groups."""
    clinic.config.write_text(clinic.config.read_text().replace("acme_bot", "acne_bot"))
    assert "the bot is @acme_bot, not @acne_bot" in clinic.wrong()["tg username"]


def test_no_secret_is_shown(clinic: Clinic, monkeypatch: pytest.MonkeyPatch):
    """This holds for a healthy bot and for a broken one."""
    fine = " ".join(map(str, clinic.results()))
    clinic.web = our_web(
        clinic.mailbox, auth_token="other", secret_token="other", signing_secret="other"
    )
    monkeypatch.setenv("REDIS_URL", f"redis://:s3cr3t@127.0.0.1:{free_port()}")
    words = fine + " ".join(map(str, clinic.results()))
    assert not [secret for secret in (*ENVIRON.values(), "s3cr3t") if secret in words]


def test_healthy_bot_has_no_findings(clinic: Clinic):
    """Every check is listed as ok, in the order of docs/how-to/connect-a-platform.md."""
    assert clinic.wrong() == {}
    sample = part("connect-a-platform.md", begin="Check everything", end="How replies look")
    shown = re.findall(r"^(?:ok  |fail)  (\w.+?)  ", sample, re.MULTILINE)
    assert f"\n{len(shown)} checks, 1 to look at\n" in sample
    names = {"wa": "shop-wa", "tg": "ops-tg", "sl": "desk"}
    found = [f"{names.get(each.channel, '')} {each.check}".strip() for each in clinic.results()]
    found.remove("disk")  # on another machine than the bot's there is no data folder
    assert found == shown


def test_missed_messages_are_found(clinic: Clinic):
    """platforms.md 1.1: messages without a webhook are on Twilio's list. The cure accepts them, the check does not."""
    clinic.platforms.arrive("twilio", "whatsapp:+4915100000042", "hello", ago=600)
    for _ in range(2):
        wrong = clinic.wrong()["wa messages"]
        assert "1 of the 1 newest messages of the last hour never reached us" in wrong
        assert "sayso channel recover wa" in wrong


def test_busy_sender_is_checked_in_part(clinic: Clinic, monkeypatch: pytest.MonkeyPatch):
    """Thousands an hour are no finding, and the newest ones are enough."""
    monkeypatch.setattr("sayso.ops.checks.doctor.MAX_LOGGED_MESSAGES", 2)
    for n in range(4):
        clinic.platforms.arrive("twilio", "whatsapp:+4915100000042", "hello", ago=600 + n)
    assert (
        "2 of the 2 newest messages of the last hour never reached us"
        in clinic.wrong()["wa messages"]
    )


@pytest.mark.parametrize(
    ("secrets", "check"),
    [
        ({"auth_token": "other"}, "wa signature"),
        ({"secret_token": "other"}, "tg signature"),
        ({"signing_secret": "other"}, "sl signature"),
    ],
)
def test_web_with_another_secret_is_found(clinic: Clinic, secrets: dict[str, str], check: str):
    """Only the round trip can show it."""
    clinic.web = our_web(clinic.mailbox, **secrets)
    wrong = clinic.wrong()
    assert wrong.keys() == {check}
    assert "a signed webhook was answered with 403" in wrong[check]
    assert "restart the web with this configuration" in wrong[check]


def test_web_with_another_public_url_is_found(clinic: Clinic):
    """platforms.md 1.2, pains.md 4: Twilio signs the URL, byte by byte."""
    clinic.web = our_web(clinic.mailbox, public_url="https://old.example.com")
    assert clinic.wrong().keys() == {"wa signature"}


def test_web_whose_clock_is_wrong_is_found(clinic: Clinic):
    """platforms.md 3.2: Slack's signature is valid for 300 s."""
    wrong = clinic.wrong(clock=lambda: time.time() - 400)
    assert wrong.keys() == {"clock", "sl signature"}
    assert "Redis is 400" in wrong["clock"]


def test_clock_a_little_off_is_a_warning(clinic: Clinic):
    """No webhook fails yet."""
    wrong = clinic.wrong(clock=lambda: time.time() - 10)
    assert wrong.keys() == {"clock"}
    assert wrong["clock"].startswith("warn")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (
            httpx.Response(301, headers={"Location": "https://www.example.com"}),
            "lose a webhook on a redirect",
        ),
        (httpx.Response(404), "have the proxy pass /hooks/"),
        (httpx.Response(502), "see the web's log, and the proxy's"),
        (httpx.Response(401), "may ask for a password"),
    ],
)
def test_proxy_that_answers_by_itself_is_found(clinic: Clinic, answer: httpx.Response, why: str):
    """platforms.md 1.1: on 301 and 302 Twilio repeats with GET and loses the form."""
    clinic.web = lambda _: answer
    assert why in clinic.wrong()["wa signature"]


def test_unreachable_web_is_found(clinic: Clinic):
    """It is one finding, since it has one cause: webhooks are not tried."""

    def away(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    clinic.web = away
    assert clinic.wrong().keys() == {"healthz"}


def test_data_folder_that_is_a_file_is_found(clinic: Clinic):
    """The line has its path. There is no traceback."""
    clinic.folder = clinic.config
    assert re.search(
        rf"'{clinic.config}.*' cannot be used \(Not a directory\)", clinic.wrong()["disk"]
    )


@pytest.mark.parametrize("folder", ["media", "media/arriving", "redis"])
def test_folder_that_this_user_may_not_use_is_found(tmp_path: Path, folder: str):
    """It is a line with the folder and a cure, and no traceback; the other checks go on."""
    (tmp_path / "bot.yaml").write_text(
        "agent: {model: offline}\nchannels: {web: {platform: console}}\n"
    )
    (tmp_path / "data" / folder).mkdir(parents=True)
    (tmp_path / "data" / folder).chmod(0o000)
    # Root may use every folder unless it gives up that right.
    drop = (
        ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all"]
        if not os.geteuid()
        else []
    )
    done = subprocess.run(
        [*drop, sys.executable, "-m", "sayso", "doctor", "--config", "bot.yaml", "--data", "data", "--json"],
        cwd=tmp_path, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    found = {each["id"]: each["says"] for each in json.loads(done.stdout)}
    assert re.search(rf"data/{folder}.* cannot be used \(Permission denied\)", found["disk"])
    assert "web-unknown" in found


def test_public_url_of_this_machine_is_found(clinic: Clinic):
    """Real platforms cannot reach it; fakes and own servers can."""
    url = "http://127.0.0.1:8000"
    clinic.web = our_web(clinic.mailbox, public_url=url)
    clinic.config = written(clinic.folder, clinic.platforms, public_url=url)
    assert clinic.wrong().keys() == {"wa webhook", "tg webhook"}
    clinic.config.write_text(
        clinic.config.read_text().replace(f", api_url: {clinic.platforms.slack_url}", "")
    )
    assert "sl would never reach it" in clinic.wrong()["public_url"]


def test_polling_bot_needs_no_url_and_a_poller(clinic: Clinic, redis_client: Redis):
    """platforms.md 2.5: no webhook is probed. A set webhook and a missing poller are found."""
    clinic.config = written(clinic.folder, clinic.platforms, telegram=", polling: true")
    assert clinic.wrong().keys() == {"tg polling", "tg poller"}
    telegram = load_settings(clinic.config).channels["tg"]
    asyncio.run(open_setup("tg", telegram, PUBLIC_URL).delete_webhook())
    LeaderLock(redis_client, poll_lock(telegram), prefix=PREFIX).take()
    assert clinic.wrong() == {}
    assert "tg signature" not in {
        f"{finding.channel} {finding.check}" for finding in clinic.results()
    }


def test_bot_without_a_worker_is_found(clinic: Clinic):
    """Turns are stored and not answered."""
    clinic.worker = None
    assert "start one with `sayso worker`" in clinic.wrong()["workers"]


def test_workers_of_another_version_are_found(clinic: Clinic, redis_client: Redis):
    """For example on a machine that was left out of an update."""
    Heartbeat(redis_client, "w2", prefix=PREFIX, version="0.0.1").beat()
    wrong = clinic.wrong()
    assert wrong.keys() == {"workers"}
    assert "1 of 0.0.1, while this command is" in wrong["workers"]
    Heartbeat(redis_client, prefix=PREFIX).leave("w2")
    assert clinic.wrong() == {}


def test_versions_of_dead_workers_are_removed(clinic: Clinic, redis_client: Redis):
    """The list does not grow with each restart."""
    for name in ("w2", "w3"):
        Heartbeat(redis_client, name, prefix=PREFIX).beat()
        redis_client.zadd(f"{PREFIX}workers", {name: 0})
    Heartbeat(redis_client, "w4", prefix=PREFIX).beat()
    assert set(redis_client.hkeys(f"{PREFIX}workers:versions")) <= {"w1", "w4"}


@pytest.mark.parametrize("left", [None, KEEP_LAST_MESSAGE_SECONDS - 8 * 86400])
def test_silent_channel_is_a_warning(clinic: Clinic, redis_client: Redis, left: int | None):
    """pains.md 4: the token is valid, and no message ever arrives."""
    key = f"{PREFIX}alert:sl:last_message"
    if left is None:
        redis_client.delete(key)
    else:
        redis_client.expire(key, left)
    wrong = clinic.wrong()
    assert (wrong.keys(), wrong["sl silence"].startswith("warn")) == ({"sl silence"}, True)
    assert "doctor.md#silence" in wrong["sl silence"]


@pytest.mark.parametrize(
    ("added", "named"),
    [
        ("channels: {wa: {expiry_notice: true}}", "expiry_notice sends one"),
        ("workers: {join_bursts: false}", "without workers.join_bursts"),
    ],
)
def test_setting_that_adds_messages_to_a_channel_that_charges_is_a_warning(
    clinic: Clinic, added: str, named: str
):
    """Each message of WhatsApp is paid for; on Telegram and Slack the same settings cost nothing."""
    assert clinic.wrong() == {}
    document = yaml.safe_load(clinic.config.read_text())
    for key, values in yaml.safe_load(added).items():
        for name, value in values.items():
            section = document.setdefault(key, {})
            section[name] = {**section[name], **value} if isinstance(value, dict) else value
    document["channels"]["tg"]["expiry_notice"] = True
    clinic.config.write_text(yaml.safe_dump(document))
    wrong = clinic.wrong()
    assert wrong.keys() == {"wa paid"}
    assert named in wrong["wa paid"]
    assert "doctor.md#paid-messages" in wrong["wa paid"]


def test_paid_messages_of_today_and_yesterday_are_shown(clinic: Clinic, redis_client: Redis):
    """Each shard has its own count. Telegram and Slack take no money, so nothing is said of them."""
    today = int(redis_client.time()[0] // 86_400)
    for shard, day, kind, number in (
        (3, today, "service", 2),
        (9, today, "service", 3),
        (9, today - 1, "utility", 1),
    ):
        redis_client.hset(f"{PREFIX}{{{shard}}}:paid:{day}", f"wa {kind}", number)
    (shown,) = [finding for finding in clinic.results() if finding.check == "paid"]
    says = "paid messages today: 5 (5 service); yesterday: 1 (1 utility) (UTC)"
    assert (shown.channel, shown.state, shown.says) == ("wa", "ok", says)


def test_message_ends_the_silence(redis_client: Redis):
    """A webhook without a message, such as the one that the doctor sends, does not."""
    alerts = RedisAlerts(redis_client, prefix=PREFIX)
    browser = services.browser(services.FakeChannel(Received(turns=())), alerts=alerts)
    browser.post("/hooks/shop")
    assert alerts.silence("shop") is None
    browser = services.browser(services.FakeChannel(Received(turns=(TURN,))), alerts=alerts)
    browser.post("/hooks/shop")
    assert alerts.silence("shop") == 0


def test_alert_of_a_channel_is_shown(clinic: Clinic, redis_client: Redis):
    """The web stored it. The doctor shows it until the channel works again."""
    RedisAlerts(redis_client, prefix=PREFIX).note("tg", "the token was revoked")
    assert "the token was revoked" in clinic.wrong()["tg alert"]


def test_another_bot_at_the_public_url_gets_no_webhook(
    clinic: Clinic, monkeypatch: pytest.MonkeyPatch
):
    """The doctor sends no test webhook to it: the answer of another bot would prove nothing."""
    monkeypatch.setenv("SAYSO_SECRET_KEYS", "k" * 32)
    seen: list[str] = []

    def other(request: httpx.Request) -> httpx.Response:
        seen.append(request.method)
        return our_web(clinic.mailbox)(request)

    clinic.web = other
    wrong = clinic.wrong()
    assert wrong.keys() == {"healthz"}
    assert ("doctor.md#web-other-bot" in wrong["healthz"], "POST" in seen) == (True, False)


def test_poller_is_not_judged_while_redis_is_away(clinic: Clinic, monkeypatch: pytest.MonkeyPatch):
    """Its lock cannot be read, so the doctor must not send the operator to start a second one."""
    clinic.config = written(clinic.folder, clinic.platforms, telegram=", polling: true")
    monkeypatch.setenv("REDIS_URL", f"redis://127.0.0.1:{free_port()}")
    assert clinic.wrong().keys() == {"redis", "tg polling"}


def test_remote_redis_without_a_replica_is_a_warning(redis_client: Redis):
    """A local Redis needs none: a lost machine takes the bot with it anyway."""
    for place, ids in {
        "10.0.0.5:6379": ["redis-no-replica"], "db.internal:6379": ["redis-no-replica"], "127.0.0.1:6379": [],
        "[::1]:6379": [], "localhost:6379": [], "/run/redis.sock": [],
    }.items():  # fmt: skip
        assert [each.id for each in _check_safety(redis_client, place)] == ids, place


def test_halted_redis_is_found(clinic: Clinic, redis_client: Redis):
    """The finding names the command that resumes it."""
    redis_client.set(keys_of(5, PREFIX).halted, '{"was": 5, "is": 1, "at": 1}')
    assert "`sayso redis resume`" in clinic.wrong()["halt"]
    halt = HaltReason("", 0, 0, backup_taken_at=1795737600.0)
    redis_client.set(keys_of(5, PREFIX).halted, halt.to_json())
    assert "`sayso restore`" in clinic.wrong()["halt"]


def test_redis_that_would_lose_messages_is_found(clinic: Clinic, redis_client: Redis):
    """Eviction is an error, a delayed fsync a risk."""
    redis_client.config_set("maxmemory-policy", "allkeys-lru")
    unfit = clinic.wrong()
    redis_client.config_set("maxmemory-policy", "noeviction")
    assert "Set it to noeviction" in unfit["redis"]
    synced = redis_client.config_get("appendfsync")["appendfsync"]
    redis_client.config_set("appendfsync", "everysec")
    risky = clinic.wrong()
    redis_client.config_set("appendfsync", synced)
    assert risky["redis"].startswith("warn")


def test_unreachable_redis_is_found(clinic: Clinic, monkeypatch: pytest.MonkeyPatch):
    """The other checks go on."""
    monkeypatch.setenv("REDIS_URL", f"redis://127.0.0.1:{free_port()}")
    assert clinic.wrong().keys() == {"redis"}


def test_embedded_redis_that_ended_is_found(clinic: Clinic, monkeypatch: pytest.MonkeyPatch):
    """For example on a full disk, while `sayso up` restarts it again and again. The line names the server's log."""
    monkeypatch.delenv("REDIS_URL")
    running = RunningBot(clinic.config, PUBLIC_URL, os.getpid())
    save_running_bot(load_settings(clinic.config).state_folder(clinic.folder), running, UP_FILE)
    (log := clinic.folder / "redis" / "server.log").parent.mkdir()
    log.touch()
    clinic.running = running
    (found,) = [each for each in clinic.results() if each.check == "redis"]
    assert (found.id, str(log) in found.cure) == ("redis-away", True)


def test_no_redis_at_all_is_found(clinic: Clinic, monkeypatch: pytest.MonkeyPatch):
    """None is configured, and no `sayso up` runs here."""
    monkeypatch.delenv("REDIS_URL")
    assert "no Redis" in clinic.wrong()["redis"]


def test_unreachable_platform_is_a_finding(clinic: Clinic):
    """It neither crashes nor ends the checks."""
    nowhere = f"http://127.0.0.1:{free_port()}"
    clinic.config.write_text(clinic.config.read_text().replace(clinic.platforms.url, nowhere))
    wrong = clinic.wrong()
    assert wrong.keys() == {"wa account", "tg token", "sl token"}


def test_nonsense_of_a_platform_is_a_finding(clinic: Clinic):
    """The api_url leads to another server."""
    clinic.config.write_text(
        clinic.config.read_text().replace(f"{clinic.platforms.url}/", f"{clinic.platforms.url}/x/")
    )
    assert clinic.wrong().keys() == {"wa account", "tg token", "sl token"}


def run(*args: object) -> tuple[int, str]:
    """Return exit code and output of the command."""
    result = CliRunner().invoke(main, ["doctor", *map(str, args)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_invalid_configuration_is_a_finding(tmp_path: Path):
    """It has file and line, and no other check runs."""
    file = tmp_path / "sayso.yaml"
    file.write_text("channels: {web: {platform: consol}}")
    code, words = run("--config", file)
    assert (code, f"{file}:1:" in words, "1 checks, 1 to look at" in words) == (1, True, True)


@pytest.mark.parametrize(("state", "expected"), [("ok", 0), ("warn", 0), ("fail", 1)])
def test_warning_does_not_fail_a_build(monkeypatch: pytest.MonkeyPatch, state: str, expected: int):
    """A warning is printed, and counted."""

    async def found(*_: object, **__: object) -> AsyncIterator[CheckResult]:
        yield CheckResult("clock", state, "says", "" if state == "ok" else "cure")

    monkeypatch.setattr("sayso.ops.cli.doctor._checks", found)
    code, words = run()
    assert (code, "1 to look at" in words) == (expected, state != "ok")


def test_wrong_option_is_a_usage_error():
    """This holds for every command."""
    assert run("--nonsense")[0] == 2


def test_findings_as_json(tmp_path: Path):
    """There is one object per check, for every result."""
    file = tmp_path / "sayso.yaml"
    file.write_text("channels: {web: {platform: consol}}")
    code, words = run("--config", file, "--json")
    assert (code, [sorted(each) for each in json.loads(words)]) == (
        1,
        [["channel", "check", "cure", "id", "says", "see", "state"]],
    )


def test_model_is_called_only_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A model that cannot be called is a finding with its variable."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    file = tmp_path / "sayso.yaml"
    file.write_text("agent: {model: 'openai:gpt-5-mini'}\nchannels: {web: {platform: console}}")

    async def found() -> list[CheckResult]:
        return [finding async for finding in check_models(load_settings(file))]

    (only,) = asyncio.run(found())
    assert (only.state, "OPENAI_API_KEY" in only.says) == ("fail", True)
    file.write_text("agent: {model: offline}\nchannels: {web: {platform: console}}")
    assert [finding.state for finding in asyncio.run(found())] == ["ok"]


def test_model_that_is_away_is_found_behind_a_fallback_that_answers(tmp_path: Path):
    """Each is asked by itself: people have answers, and the operator still learns which model gives none."""
    with (
        ModelRecorder(side_answer={"status": 500, "message": "down"}) as away,
        ModelRecorder() as other,
    ):
        file = tmp_path / "sayso.yaml"
        file.write_text(
            f"agent:\n  model: openai:first\n  base_url: {away.url('openai')}\n"
            f"  fallback: [{{model: 'openai:second', base_url: '{other.url('openai')}'}}]\n"
            "channels: {web: {platform: console}}"
        )

        async def found() -> list[CheckResult]:
            return [finding async for finding in check_models(load_settings(file))]

        first, second = asyncio.run(found())
    assert (first.state, "openai:first" in first.says) == ("fail", True)
    assert (second.state, second.says) == ("ok", "openai:second answers")


def test_groups_that_give_a_role_must_be_readable(clinic):
    """Otherwise nobody can decide, and each question waits to its end."""
    text = clinic.config.read_text()
    groups = "[{channel: sl, group: S0MANAGERS}, {channel: tg, group: '-1001'}]"
    clinic.config.write_text(f"{text}roles: {{manager: {{groups: {groups}}}}}\n")
    wrong = clinic.wrong()
    assert wrong.keys() == {"sl group", "tg group", "sl scopes"}
    assert "nobody can decide by the group S0MANAGERS" in wrong["sl group"]
    assert "usergroups:read" in wrong["sl scopes"]

    slack = clinic.platforms.fakes["slack"]
    slack.scopes |= {"usergroups:read"}
    slack.user_groups["S0MANAGERS"] = []
    assert "it has no people" in clinic.wrong()["sl group"]
    slack.user_groups["S0MANAGERS"] = ["U0ADA"]
    ada = {"id": 7, "is_bot": False, "first_name": "Ada"}
    clinic.platforms.log.state[ADMINISTRATORS] = {"-1001": [ada]}
    assert clinic.wrong() == {}
