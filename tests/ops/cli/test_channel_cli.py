"""The `sayso channel` commands: they send no call that a platform would refuse, and explain errors with a cure."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from sayso.channels.i18n.texts import texts_for
from sayso.channels.telegram.incoming import ALLOWED_UPDATES
from sayso.channels.telegram.setup import COMMANDS, EPHEMERAL_COMMANDS
from sayso.channels.whatsapp.client import SANDBOX
from sayso.channels.whatsapp.setup import RETRIES
from sayso.ops.cli.main import main
from sayso.pending.consent.phrases import SHIPPED_LANGUAGES
from sayso.testing.platforms import fake_platforms as fakes
from sayso.testing.platforms.fake_platforms import FakePlatforms
from sayso.testing.platforms.server import FakeResponse
from sayso.testing.platforms.telegram import COMMANDS as MENUS
from sayso.testing.platforms.telegram import GROUP_COMMANDS, WEBHOOK
from sayso.testing.platforms.twilio import SENDER, SERVICE_SID
from tests.config.fake_bots import ENVIRON, PUBLIC_URL, written
from tests.config.processes import free_port


class Bench:
    """The fake platforms, a configuration, and the command."""

    def __init__(self, folder: Path, platforms: FakePlatforms) -> None:
        self.folder, self.platforms = folder, platforms
        self.twilio = platforms.fakes["twilio"].setup  # type: ignore[attr-defined]
        self.configure()

    def configure(self, *, real: bool = False, **given: str) -> None:
        """Write the configuration anew."""
        self.config = written(self.folder, None if real else self.platforms, **given)

    def run(self, *args: object) -> tuple[int, str]:
        """Return exit code and output; check that it holds no secret."""
        result = CliRunner().invoke(
            main, ["channel", *map(str, args), "--config", str(self.config)]
        )
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert not [secret for secret in ENVIRON.values() if secret in result.output]
        return result.exit_code, result.output

    def asked(self, method: str) -> list[dict]:
        """Return the calls of a method of Telegram."""
        return [call["params"] for call in self.platforms.calls if call["method"] == method]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """Return a configuration of all three platforms."""
    for name, value in ENVIRON.items():
        monkeypatch.setenv(name, value)
    with FakePlatforms() as platforms:
        yield Bench(tmp_path, platforms)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://bots.example.com", "https only"),
        ("https://bots.example.com:8080", "443, 80, 88, 8443 only"),
        ("https://127.0.0.1", "no platform can reach"),
        ("https://localhost:8443", "no platform can reach"),
        ("https://192.168.1.7", "no platform can reach"),
        ("https://[2606:4700:4700::1111]", "IPv4"),
    ],
)
def test_url_that_telegram_refuses_is_refused_before_the_call(bench: Bench, url: str, why: str):
    """platforms.md 2.1: only https on 443, 80, 88 and 8443, no reserved addresses. The cure is named."""
    bench.configure(real=True, public_url=url)
    code, words = bench.run("connect", "tg")
    assert (code, why in words, "public_url" in words) == (3, True, True)
    assert bench.platforms.calls == []


def test_own_bot_api_server_takes_any_url(bench: Bench):
    """With an `api_url` other than Telegram's, http on any port is allowed."""
    bench.configure(public_url="http://127.0.0.1:8000")
    assert bench.run("connect", "tg")[0] == 0
    assert bench.platforms.log.state[WEBHOOK]["url"] == "http://127.0.0.1:8000/hooks/tg"


def test_waiting_updates_are_dropped_only_on_request(bench: Bench):
    """platforms.md 2.5: setting the webhook does not drop messages that came while the bot was down."""
    bench.run("connect", "tg")
    bench.run("connect", "tg", "--drop-pending")
    assert [asked.get("drop_pending_updates") for asked in bench.asked("setWebhook")] == [
        None,
        "true",
    ]
    assert bench.run("connect", "wa", "--drop-pending")[0] == 3


def test_telegram_gets_everything_a_webhook_needs(bench: Bench):
    """platforms.md 2.1, 2.5: secret, kinds of update (else the old ones stay), connections, and the menu."""
    code, words = bench.run("connect", "tg", "--max-connections", 7)
    asked = bench.asked("setWebhook")[0]
    assert (code, asked["url"], asked["secret_token"]) == (
        0,
        f"{PUBLIC_URL}/hooks/tg",
        fakes.TELEGRAM_SECRET,
    )
    assert (asked["max_connections"], bench.platforms.log.state[WEBHOOK]["allowed_updates"]) == (
        "7",
        list(ALLOWED_UPDATES),
    )
    assert [each["command"] for each in bench.platforms.log.state["telegram commands"][""]] == list(
        COMMANDS
    )
    assert "webhook set to https://bots.example.com/hooks/tg" in words
    assert "ok    tg pending              0 updates waiting" in words
    assert "in groups the bot gets" in words


def test_menu_is_in_the_language_of_its_reader(bench: Bench):
    """platforms.md 2.5: it exists in each language of the channel; all others see the channel's default."""
    bench.configure(telegram=", languages: [pt, de]")
    bench.run("connect", "tg")
    menus = bench.platforms.log.state["telegram commands"]
    assert menus.keys() == {"", *SHIPPED_LANGUAGES}
    told = {language: menu[0]["description"] for language, menu in menus.items()}
    assert told == {
        language: texts_for("de" if language == "de" else "pt").command("help")
        for language in menus
    }


def test_commands_about_one_person_are_declared_as_ephemeral(bench: Bench):
    """Bot API 10.2: in a group only that person sees the command and its answer.

    All see /stop and /reset.
    """
    bench.run("connect", "tg")
    everywhere, in_groups = (
        bench.platforms.log.state[menus][""] for menus in (MENUS, GROUP_COMMANDS)
    )
    private = {each["command"] for each in in_groups if each.get("is_ephemeral")}
    assert private == EPHEMERAL_COMMANDS == {"help", "whoami", "revoke", "status", "tools"}
    assert [each["command"] for each in in_groups] == list(COMMANDS)
    assert not any("is_ephemeral" in each for each in everywhere)


def test_commands_of_the_model_are_in_no_menu(bench: Bench):
    """With `commands: false` only /stop works, so there is no menu."""
    bench.configure(telegram=", commands: false")
    assert "commands listed: /stop\n" in bench.run("connect", "tg")[1]
    assert [each["command"] for each in bench.platforms.log.state["telegram commands"]["de"]] == [
        "stop"
    ]


def test_status_names_the_error_and_the_cure(bench: Bench):
    """platforms.md 2.5: getWebhookInfo has the count and the last error; 403 means another secret."""
    bench.run("connect", "tg")
    assert bench.run("status", "tg")[0] == 0
    info = bench.platforms.log.state[WEBHOOK]
    info |= {"pending_update_count": 99, "last_error_date": int(time.time()) - 60}
    info["last_error_message"] = "Wrong response from the webhook: 403 Forbidden\x1b[31m"
    code, words = bench.run("status", "tg")
    assert (code, "99 updates waiting" in words, "403 Forbidden" in words, "\x1b" in words) == (
        1,
        True,
        True,
        False,
    )
    assert "the secret_token differs: run `sayso channel connect tg`" in words


def test_warning_alone_is_no_failure(bench: Bench):
    """A build that runs the command goes on."""
    bench.run("connect", "tg")
    bench.platforms.log.state[WEBHOOK] |= {"pending_update_count": 99}
    code, words = bench.run("status", "tg")
    assert (code, "warn  tg pending              99 updates waiting" in words) == (0, True)


def test_old_error_of_telegram_is_not_reported(bench: Bench):
    """Telegram keeps the last error for ever."""
    bench.run("connect", "tg")
    bench.platforms.log.state[WEBHOOK] |= {
        "last_error_date": 1795204800,
        "last_error_message": "Connection refused",
    }
    code, words = bench.run("status", "tg")
    assert (code, "Connection refused (2026-11-20 20:00:00 UTC), over an hour ago" in words) == (
        0,
        True,
    )


def test_foreign_webhook_is_reported(bench: Bench):
    """User and query of its URL, which may be secrets, are left out."""
    other = {"url": "https://me:pass@other.example.com/x?token=1", "has_custom_certificate": False}
    bench.platforms.log.state[WEBHOOK] = {**other, "pending_update_count": 0}
    code, words = bench.run("status", "tg")
    assert (code, "Telegram sends to https://other.example.com/x, not to" in words) == (1, True)
    assert "pass" not in words
    assert "token=1" not in words


def test_disconnect_reports_what_it_did(bench: Bench):
    """platforms.md 2.5: the second time it reports that there was no webhook."""
    bench.run("connect", "tg")
    assert (
        "webhook deleted: it was https://bots.example.com/hooks/tg"
        in bench.run("disconnect", "tg")[1]
    )
    assert bench.run("disconnect", "tg") == (0, "no webhook was set: nothing to delete\n")
    assert "no webhook is set" in bench.run("status", "tg")[1]


def test_wrong_token_is_reported(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """platforms.md 2.4: 401 means a wrong or revoked token. The output does not show it."""
    monkeypatch.setenv("TELEGRAM_TOKEN", "7000000001:AAwrong")
    code, words = bench.run("connect", "tg")
    assert (code, "Telegram does not know this token" in words, "AAwrong" in words) == (
        3,
        True,
        False,
    )


@pytest.mark.parametrize("channel", ["wa", "tg", "sl"])
def test_unreachable_platform_is_reported(bench: Bench, channel: str):
    """The error is one line without a traceback."""
    url, nowhere = bench.platforms.url, f"http://127.0.0.1:{free_port()}"
    bench.config.write_text(bench.config.read_text().replace(url, nowhere))
    code, words = bench.run("status", channel)
    assert (code, "no connection to" in words, "cure: " in words) == (1, True, True)


def test_twilio_sender_gets_the_webhook(bench: Bench):
    """platforms.md 1.5: it is found by its number and set by its XE id; 1.1: with retries and a fallback."""
    code, words = bench.run("connect", "wa")
    url = f"{PUBLIC_URL}/hooks/wa"
    assert (code, bench.twilio.sender["webhook"]) == (
        0,
        {
            "callback_url": url + RETRIES, "callback_method": "POST", "fallback_url": url, "fallback_method": "POST",
            "status_callback_url": f"{url}/status", "status_callback_method": "POST",
        },
    )  # fmt: skip
    assert f"sender {SENDER}: webhook set" in words
    assert "ok    wa webhook" in words


def test_messaging_service_is_set_where_there_is_one(bench: Bench):
    """platforms.md 1.5: services(MG).update; a service that uses its numbers' webhooks would never call the bot."""
    bench.configure(whatsapp=f", messaging_service_sid: {SERVICE_SID}")
    assert "leaves webhooks to its numbers" in bench.run("status", "wa")[1]
    assert bench.run("connect", "wa")[0] == 0
    kept = bench.twilio.service
    assert (kept["inbound_request_url"], kept["use_inbound_webhook_on_number"]) == (
        f"{PUBLIC_URL}/hooks/wa{RETRIES}",
        False,
    )
    assert kept["status_callback"] == f"{PUBLIC_URL}/hooks/wa/status"
    bench.run("disconnect", "wa")
    assert kept["inbound_request_url"] is None


def test_webhook_by_get_is_reported(bench: Bench):
    """platforms.md 1.1: GET can be set by hand, and every message would be refused."""
    bench.run("connect", "wa")
    bench.twilio.sender["webhook"]["callback_method"] = "GET"
    code, words = bench.run("status", "wa")
    assert (code, "by GET" in words, "run `sayso channel connect wa`" in words) == (1, True, True)
    assert bench.run("connect", "wa")[0] == 0


def test_sandbox_is_set_by_hand(bench: Bench):
    """platforms.md 1.5: there is no API for its URLs."""
    bench.configure(sender=SANDBOX)
    code, words = bench.run("connect", "wa")
    assert (code, "In the Twilio Console" in words, f"{PUBLIC_URL}/hooks/wa/status" in words) == (
        0,
        True,
        True,
    )
    assert bench.twilio.sender["webhook"] == {}


def test_unknown_sender_is_reported_with_the_known_ones(bench: Bench):
    """platforms.md 1.5: the usual reason is a typing error in the number."""
    bench.configure(sender="whatsapp:+4930999999")
    code, words = bench.run("connect", "wa")
    assert (code, "no sender whatsapp:+4930999999" in words, SENDER in words) == (3, True, True)


def test_offline_sender_is_reported_with_its_reasons(bench: Bench):
    """platforms.md 1.5: a sender is ONLINE, or OFFLINE with reasons."""
    bench.run("connect", "wa")
    bench.twilio.sender |= {
        "status": "OFFLINE",
        "offline_reasons": [{"code": "63020", "message": "Not verified"}],
    }
    code, words = bench.run("status", "wa")
    assert (code, "is OFFLINE: Not verified" in words) == (1, True)


@pytest.mark.parametrize(("status", "fine"), [("approved", True), ("pending", False), ("", False)])
def test_unapproved_template_is_reported(bench: Bench, status: str, *, fine: bool):
    """platforms.md 1.3: outside the 24 hours only approved templates are sent."""
    bench.run("connect", "wa")
    sid = f"HX{7:032x}"
    bench.twilio.templates[sid] = ("reminder", status)
    bench.configure(whatsapp=f", template: {sid}")
    code, words = bench.run("status", "wa")
    assert (code == 0, f"reminder is {status or 'unsubmitted'}" in words) == (fine, True)


@pytest.mark.parametrize(
    ("status", "cure"),
    [
        ("rejected", "submit it again"),
        ("paused", "wait until Meta ends the pause"),
        ("disabled", "create another"),
    ],
)
def test_template_that_meta_refuses_has_its_own_cure(bench: Bench, status: str, cure: str):
    """Approval does not help one that is paused or disabled."""
    sid = f"HX{7:032x}"
    bench.twilio.templates[sid] = ("reminder", status)
    bench.configure(whatsapp=f", template: {sid}")
    words = bench.run("status", "wa")[1]
    assert (f"reminder is {status}" in words, cure in words) == (True, True)


def test_unknown_template_is_named(bench: Bench):
    """The output shows which of two ids is wrong."""
    bench.configure(whatsapp=f", template: HX{8:032x}")
    assert f"Twilio has no resource of this id: HX{8:032x}" in bench.run("status", "wa")[1]


def test_wrong_twilio_token_is_reported(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """platforms.md 1.4, 1.5: 20003 with 401 means wrong credentials."""
    monkeypatch.setenv("TWILIO_AUTH_TOKEN", "wrong-auth-token")
    code, words = bench.run("connect", "wa")
    assert (
        code,
        "does not take account_sid and auth_token" in words,
        "primary Auth Token" in words,
    ) == (3, True, True)


def test_slack_prints_the_steps_by_hand(bench: Bench):
    """platforms.md 3.5: a bot token cannot change the app; the manifest has everything."""
    code, words = bench.run("connect", "sl")
    assert (
        code,
        f"Request URL {PUBLIC_URL}/hooks/sl" in words,
        "`sayso channel manifest sl`" in words,
    ) == (
        0,
        True,
        True,
    )
    assert "Event Subscriptions   off" in bench.run("disconnect", "sl")[1]


def test_missing_scope_of_slack_is_reported_with_its_use(bench: Bench):
    """platforms.md 3.4, pains.md 4: missing_scope needs a new install. A header of every answer has the scopes."""
    assert bench.run("status", "sl")[0] == 0
    slack = bench.platforms.fakes["slack"]
    slack.scopes = tuple(scope for scope in slack.scopes if scope != "files:write")  # type: ignore[attr-defined]
    code, words = bench.run("status", "sl")
    assert (code, "missing: files:write (for files.completeUploadExternal" in words) == (1, True)
    assert ("install again" in words, "view: none" in words) == (True, False)


def test_missing_scope_of_the_agent_view_names_the_setting_for_apps_without_one(bench: Bench):
    """Slack refuses the scope to an app that has no view."""
    slack = bench.platforms.fakes["slack"]
    slack.scopes = tuple(scope for scope in slack.scopes if scope != "assistant:write")  # type: ignore[attr-defined]
    code, words = bench.run("status", "sl")
    assert (
        code,
        "missing: assistant:write (for the agent view)" in words,
        "view: none" in words,
    ) == (1, True, True)


def test_revoked_slack_token_is_reported(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """platforms.md 3.4."""
    monkeypatch.setenv("SLACK_BOT_TOKEN", "xoxb-other")
    assert "does not take the bot_token (invalid_auth)" in bench.run("status", "sl")[1]


@pytest.mark.parametrize(
    ("channel", "exit_code", "why"),
    [("web", 3, "no webhook"), ("nowhere", 2, "known: wa, tg, sl, web")],
)
def test_channel_without_a_webhook_is_refused(bench: Bench, channel: str, exit_code: int, why: str):
    """Each of the three commands refuses it. An unknown name is wrong usage."""
    for command in ("connect", "status", "disconnect"):
        code, words = bench.run(command, channel)
        assert (code, why in words) == (exit_code, True)


def test_page_has_no_log_and_each_command_has_its_own_cure(bench: Bench):
    """What people write into the page again has nothing to do with the deletion of files."""
    assert "asks people to send again" in bench.run("recover", "web")[1]
    assert "only the bot itself has its files" in bench.run("purge-media", "web")[1]


def test_polling_bot_gets_no_webhook(bench: Bench):
    """platforms.md 2.5: a webhook would end the polling. The cure is named, and Telegram is not called."""
    bench.configure(telegram=", polling: true")
    code, words = bench.run("connect", "tg")
    assert (code, "tg polls" in words, "run `sayso poll`" in words, bench.platforms.calls) == (
        3,
        True,
        True,
        [],
    )


def test_status_of_a_polling_bot_names_an_obstructing_webhook(bench: Bench):
    """platforms.md 2.5: deleteWebhook comes before getUpdates, and waiting updates are kept."""
    bench.run("connect", "tg")
    bench.configure(telegram=", polling: true")
    code, words = bench.run("status", "tg")
    assert (code, "Telegram sends to https://bots.example.com/hooks/tg" in words) == (1, True)
    assert "run `sayso channel disconnect tg`" in words
    assert "or for `sayso poll`" in bench.run("disconnect", "tg")[1]
    code, words = bench.run("status", "tg")
    assert (code, "no webhook is set" in words) == (0, True)


def test_updates_are_dropped_without_a_webhook(bench: Bench):
    """platforms.md 2.5: updates that wait for the poller go too, and the output says so."""
    bench.platforms.update({"update_id": 1, "message": {}})
    bench.configure(telegram=", polling: true")
    assert "1 waiting updates dropped" in bench.run("disconnect", "tg", "--drop-pending")[1]
    assert bench.platforms.telegram.updates.poll({}) == []


def test_answer_that_is_no_json_is_one_finding(bench: Bench, caplog: pytest.LogCaptureFixture):
    """A proxy's page is an example; the SDK would log all of it, with a traceback."""
    bench.platforms.fakes["telegram"].answer = lambda _: FakeResponse(
        200, b"<h1>welcome to nginx</h1>"
    )  # type: ignore[method-assign]
    code, words = bench.run("status", "tg")
    assert (code, "makes no sense" in words, caplog.text) == (1, True, "")
