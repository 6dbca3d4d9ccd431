"""platforms.md 1.4: the table of Twilio's errors, row by row."""

from __future__ import annotations

import asyncio

import pytest

from sayso.channels.base import (
    AddressClosed,
    ChannelDown,
    DeliveryUncertain,
    OptedOut,
    RateLimited,
    Refused,
    SendError,
    TemplateRefused,
    Unreachable,
    WindowClosed,
)
from sayso.channels.types import Conversation, Delivery, Reply
from sayso.channels.whatsapp.client import DAY_LIMIT_SECONDS, REACTIONS, send_error
from sayso.testing.platforms.fake_platforms import FakePlatforms
from sayso.testing.platforms.server import FakeResponse
from sayso.testing.platforms.twilio import TEMPLATE
from sayso.workers.sender import MAX_SEND_ATTEMPTS
from tests.channels.harness import MemoryMedia, whatsapp

CHAT = Conversation("wa", "whatsapp:+4915100000042")
DAY = 24 * 3600.0

#: Codes about an approved template. A message without one is refused.
TEMPLATE_CODES = (21655, 21656, 63027, 63028, 63040, 63041, 63042, 63062, 92005)
#: Codes that call the recipient no phone number.
NUMBER_CODES = (21211, 21614, 63003)

#: Code, the error of the first attempt, the error of the second.
ROWS = [
    *[(code, RateLimited, RateLimited) for code in (20429, 63018, 63038)],
    (63016, WindowClosed, WindowClosed),
    *[(code, AddressClosed, AddressClosed) for code in (63003, 63024, 21211, 21614, 63015, 63058)],
    *[(code, OptedOut, OptedOut) for code in (21610, 63014, 63033, 63050)],
    *[
        (code, ChannelDown, ChannelDown)
        for code in (63007, 63008, 63001, 63002, 63020, 63051, 20003)
    ],
    *[(code, Refused, Refused) for code in (63005, 63006, 63013, 63021, 21617, 21620)],
    *[(code, Unreachable, Refused) for code in (63019, 30008, 63009, 63010, 63012)],
    *[(code, Refused, Refused) for code in (63030, 63031, 21654)],
    *[(code, Refused, Refused) for code in TEMPLATE_CODES],
    *[(code, Refused, Refused) for code in (63049, 63032, 30007)],
]


def test_every_code_has_its_row():
    """A new code of the adapter needs a row here."""
    assert {code for code, _, _ in ROWS} == set(REACTIONS)


@pytest.mark.parametrize(("code", "first", "second"), ROWS)
def test_each_code_has_its_reaction(
    media: MemoryMedia,
    platforms: FakePlatforms,
    code: int,
    first: type[SendError],
    second: type[SendError],
):
    """platforms.md 1.4: each code raises its error, on the first attempt and on the second."""
    channel = whatsapp(media, platforms.twilio_url)
    for attempt, kind in enumerate((first, second), 1):
        platforms.script("twilio", str(code))
        with pytest.raises(SendError) as caught:
            asyncio.run(channel.send(Delivery("d", CHAT, Reply("x"), attempt)))
        assert type(caught.value) is kind
        assert "+49" not in str(caught.value)


@pytest.mark.parametrize("code", NUMBER_CODES)
def test_code_about_a_number_closes_no_address_that_is_an_id(
    media: MemoryMedia,
    platforms: FakePlatforms,
    code: int,
):
    """Twilio answered 21211 to ids in June 2026.

    The person can be reached, so the next reply is attempted.
    """
    hidden = Conversation("wa", "whatsapp:DE.77")
    platforms.script("twilio", str(code))
    with pytest.raises(Refused) as caught:
        asyncio.run(whatsapp(media, platforms.twilio_url).send(Delivery("d", hidden, Reply("x"))))
    assert type(caught.value) is Refused
    assert "DE.77" not in str(caught.value)


@pytest.mark.parametrize("code", TEMPLATE_CODES)
def test_refused_template_is_named_with_its_cure(
    media: MemoryMedia,
    platforms: FakePlatforms,
    code: int,
):
    """The operator reads which template it is and what to do.

    The address stays open, and the reply waits.
    """
    platforms.script("twilio", str(code))
    channel = whatsapp(media, platforms.twilio_url, template=TEMPLATE)
    with pytest.raises(TemplateRefused) as caught:
        asyncio.run(channel.send(Delivery("d", CHAT, Reply("x"), silence=DAY)))
    refusal = caught.value.refusal
    assert refusal.template == TEMPLATE
    assert f"Twilio error {code}" in refusal.reason
    assert refusal.cure


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (429, RateLimited),
        (401, ChannelDown),
        (502, Unreachable),
        (503, Unreachable),
        (500, DeliveryUncertain),
        (504, DeliveryUncertain),
        (0, DeliveryUncertain),
        (400, Refused),
        (404, Refused),
    ],
)
def test_unknown_code_is_judged_by_its_http_status(status: int, kind: type[SendError]):
    """platforms.md 1.4: without a row the HTTP status decides, and an unclear one is DeliveryUncertain."""
    for code in (0, 12345):
        assert type(send_error(status, code)) is kind


@pytest.mark.parametrize(("code", "seconds"), [(20429, 1), (63018, 5), (63038, 3 * 3600)])
def test_rate_limits_have_their_wait(code: int, seconds: float):
    """platforms.md 1.4: 63018 waits for seconds, and the daily limit for hours."""
    error = send_error(400, code)
    assert isinstance(error, RateLimited)
    assert error.retry_after == seconds


def test_wrong_credentials_take_the_channel_down(media: MemoryMedia, platforms: FakePlatforms):
    """platforms.md 1.4: 20003 and 401 stop the channel, and no reply is lost."""
    channel = whatsapp(media, platforms.twilio_url, auth_token="another")
    with pytest.raises(ChannelDown):
        asyncio.run(channel.send(Delivery("d", CHAT, Reply("x"))))


def test_reply_outlasts_the_daily_limit():
    """platforms.md 1.4: 63038 ends within 24 hours, and the sender still has attempts left then."""
    assert (MAX_SEND_ATTEMPTS - 1) * DAY_LIMIT_SECONDS > 24 * 3600


@pytest.mark.parametrize(
    ("code", "seconds"), [("63038", DAY_LIMIT_SECONDS), ("63018", 5.0), ("429", 7.0)]
)
def test_wait_of_a_429_follows_its_code(
    media: MemoryMedia, platforms: FakePlatforms, code: str, seconds: float
):  # fmt: skip
    """platforms.md 1.4: the code wins over the status: one second would be too short at the daily limit."""
    platforms.script("twilio", code)
    with pytest.raises(RateLimited) as caught:
        asyncio.run(whatsapp(media, platforms.twilio_url).send(Delivery("d", CHAT, Reply("x"))))
    assert caught.value.retry_after == seconds


def test_unreadable_success_is_uncertain(
    media: MemoryMedia, platforms: FakePlatforms, monkeypatch: pytest.MonkeyPatch
):
    """platforms.md 1.4: a proxy's page instead of a 201: an unmarked second send could be a double."""
    monkeypatch.setattr(
        platforms.fakes["twilio"], "answer", lambda _: FakeResponse(200, b"<html>Welcome</html>")
    )
    with pytest.raises(DeliveryUncertain):
        asyncio.run(whatsapp(media, platforms.twilio_url).send(Delivery("d", CHAT, Reply("x"))))
