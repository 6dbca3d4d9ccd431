"""`sayso doctor` and `sayso channel` as commands, beside a running bot of Redis, web and workers."""

from __future__ import annotations

import json

from sayso.testing.platforms.fake_platforms import ENVIRON
from tests.flows.system import System


def test_doctor_reports_exactly_the_wrong_settings(system: System) -> None:
    """The secret of one channel differs from the running web's; the check makes a round trip through the real web."""
    for channel in ("ops-tg", "quick-tg"):
        assert system.command("channel", "connect", channel)[0] == 0
    code, words, errors = system.command("doctor", "--json", SLACK_SIGNING_SECRET="another")
    found = (
        each for each in json.loads(words) if each["state"] != "ok" and each["check"] != "silence"
    )
    wrong = {(each["channel"], each["check"]): each for each in found}
    # A Telegram bot has one webhook, set by its last channel. The Sandbox's number is no sender of its account.
    assert (code, errors, wrong.keys()) == (1, "", {("ops-tg", "webhook"), ("desk", "signature")})
    assert "answered with 403" in wrong["desk", "signature"]["says"]


def test_doctor_lists_every_passed_check(system: System) -> None:
    """The output has one line for each check, and no secret."""
    _, words, errors = system.command("doctor", "--model")
    lines = words.splitlines()
    for check in (
        "redis",
        "clock",
        "workers",
        "healthz",
        "shop-wa signature",
        "quick-tg webhook",
        "desk scopes",
    ):
        assert any(line.startswith(f"ok    {check} ") for line in lines), (check, words)
    assert any(line.startswith("ok    model ") for line in lines)
    assert not [
        secret
        for name, secret in ENVIRON.items()
        if name != "TWILIO_ACCOUNT_SID" and secret in words + errors
    ]
