"""Slack's errors: each row of platforms.md 3.4 is a reaction, and no error is silence."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest

from sayso.channels.base import (
    AddressClosed,
    ChannelDown,
    DeliveryUncertain,
    RateLimited,
    Refused,
    SendError,
    Unreachable,
)
from sayso.channels.slack.client import REACTIONS, reaction_to
from sayso.channels.types import Conversation, Delivery, Receipt, Reply
from sayso.testing.platforms.fake_platforms import FakePlatforms
from sayso.testing.platforms.slack import SCOPES, FakeSlack
from tests.channels.harness import IMAGE, MemoryMedia, server, slack

THREAD = Conversation("sl", "C0OPS", "1795204800.000150")

#: The rows of platforms.md 3.4: Slack's errors, and what sending words ends in. None: the words arrive nevertheless.
ROWS: list[tuple[str, type[SendError] | None]] = [
    ("ratelimited rate_limited message_limit_exceeded 429", RateLimited),
    ("token_revoked token_expired account_inactive invalid_auth not_authed org_login_required", ChannelDown),
    ("missing_scope not_allowed_token_type", ChannelDown),
    ("no_permission", Refused),
    ("channel_not_found is_archived user_not_found messages_tab_disabled", AddressClosed),
    ("not_in_channel user_not_in_channel", AddressClosed),
    ("restricted_action restricted_action_read_only_channel restricted_action_thread_only_channel", AddressClosed),
    ("cannot_reply_to_message thread_locked", AddressClosed),
    ("no_text invalid_blocks invalid_blocks_format msg_blocks_too_long msg_too_long markdown_text_conflict", None),
    ("expired_trigger_id exchanged_trigger_id streaming_state_conflict an_error_of_tomorrow", Refused),
    ("internal_error fatal_error service_unavailable request_timeout 500 502 503", DeliveryUncertain),
]
CASES = [(error, kind) for errors, kind in ROWS for error in errors.split()]


@pytest.fixture
def fake(platforms: FakePlatforms) -> Iterator[FakeSlack]:
    """Slack's fake, with all its scopes and a file server that works again when the test ends."""
    fake = platforms.fakes["slack"]
    assert isinstance(fake, FakeSlack)
    yield fake
    fake.scopes, fake.upload_status = SCOPES, 200


def send(media: MemoryMedia, platforms: FakePlatforms, reply: Reply, to: Conversation = THREAD) -> Receipt:
    """Send one piece."""
    return asyncio.run(slack(media, platforms.slack_url).send(Delivery("d", to, reply)))


@pytest.mark.parametrize(("error", "kind"), CASES)
def test_row(media: MemoryMedia, platforms: FakePlatforms, error: str, kind: type[SendError] | None):
    """platforms.md 3.3, 3.4: what is done about each error, of exactly this kind."""
    platforms.script("slack", error)
    if kind is None:
        assert send(media, platforms, Reply("x")).message_id
        return
    with pytest.raises(kind) as caught:
        send(media, platforms, Reply("x"))
    assert type(caught.value) is kind
    assert platforms.sent == []


def test_every_error_we_know_has_its_row():
    """platforms.md 3.4: no code is known to the adapter and not to its tests; those of edits are tested with edits."""
    edits = {code for code, reaction in REACTIONS.items() if reaction == "repost"}
    assert edits == {"message_not_found", "cant_update_message", "edit_window_closed"}
    assert {code for code in REACTIONS if code not in edits} <= {error for error, _ in CASES}
    assert reaction_to("restricted_action_non_threadable_channel") == "closed"


def test_words_that_are_refused_twice_are_refused(media: MemoryMedia, platforms: FakePlatforms):
    """platforms.md 3.4: plain text once, not for ever."""
    platforms.script("slack", "msg_blocks_too_long", times=2)
    with pytest.raises(Refused, match="msg_blocks_too_long"):
        send(media, platforms, Reply("x"))


def test_missing_scope_is_named_with_its_cure(media: MemoryMedia, platforms: FakePlatforms, fake: FakeSlack):
    """platforms.md 3.4: words that need a scope wait until the app has it; the operator hears which."""
    fake.scopes = SCOPES - {"chat:write"}
    with pytest.raises(ChannelDown, match="add the scope chat:write and install the app again"):
        send(media, platforms, Reply("x"))


def test_missing_scope_of_one_method_holds_nothing_else_up(
    media: MemoryMedia, platforms: FakePlatforms, fake: FakeSlack
):
    """platforms.md 3.4: without im:write a person's id leads nowhere, but words go everywhere else."""
    fake.scopes = SCOPES - {"im:write"}
    with pytest.raises(Refused, match="im:write") as caught:
        send(media, platforms, Reply("x"), Conversation("sl", "U0ADA"))
    assert type(caught.value) is Refused
    assert send(media, platforms, Reply("x"))


def test_app_outside_a_channel_asks_to_be_invited(media: MemoryMedia, platforms: FakePlatforms):
    """platforms.md 3.4: not_in_channel: ask for an invitation."""
    platforms.script("slack", "not_in_channel")
    with pytest.raises(AddressClosed, match="invite the app"):
        send(media, platforms, Reply("x"))


@pytest.mark.parametrize(
    "error",
    ["file_uploads_disabled", "storage_limit_reached", "file_upload_size_restricted", "missing_scope"],
)
def test_file_that_slack_refuses_is_a_link(media: MemoryMedia, platforms: FakePlatforms, error: str):
    """platforms.md 3.3, pains.md 13: name, size and address instead of silence, after the words that came with it."""
    platforms.script("slack", error)
    receipt = send(media, platforms, Reply("Here it **is**", media=IMAGE))
    url = media.url(IMAGE.ref, filename=IMAGE.filename, mime_type=IMAGE.mime_type)
    sent = platforms.sent[0]
    assert sent["text"] == f"Here it *is*\n`red.png` (69 B): <{url}>"
    assert (sent["chat"], sent["thread"], sent["media"], bool(receipt.message_id)) == (
        *THREAD.address.split("/"),
        None,
        True,
    )


def test_file_without_its_scope_is_a_link(media: MemoryMedia, platforms: FakePlatforms, fake: FakeSlack):
    """platforms.md 3.4: the first of the three calls is refused already."""
    fake.scopes = SCOPES - {"files:write"}
    send(media, platforms, Reply(media=replace(IMAGE, filename="a`b_c_d.png")))
    assert platforms.sent[0]["text"].startswith("`a'b_c_d.png` (69 B): <http")


def test_file_to_a_closed_address_is_no_link(media: MemoryMedia, platforms: FakePlatforms):
    """Where no file arrives for want of an address, no link does."""
    platforms.script("slack", "is_archived")
    with pytest.raises(AddressClosed):
        send(media, platforms, Reply(media=IMAGE))


@pytest.mark.parametrize("error", ["drop", "lost", "internal_error"])
def test_file_whose_sharing_is_unclear_is_not_shared_again(media: MemoryMedia, platforms: FakePlatforms, error: str):
    """platforms.md 3.3: the last of the three calls shows it."""
    platforms.script("slack", error)
    with pytest.raises(DeliveryUncertain):
        send(media, platforms, Reply(media=IMAGE))


def test_upload_that_breaks_before_the_file_is_shared_may_be_repeated(media: MemoryMedia):
    """platforms.md 3.3: nobody has seen anything yet."""

    async def story() -> None:
        async with server(b"") as (url, _):
            await slack(media, url).send(Delivery("d", THREAD, Reply(media=IMAGE)))

    with pytest.raises(Unreachable):
        asyncio.run(story())


@pytest.mark.parametrize("status", [302, 429, 500, 503])
def test_upload_that_the_file_server_does_not_take_may_be_repeated(
    media: MemoryMedia, platforms: FakePlatforms, fake: FakeSlack, status: int
):
    """platforms.md 3.3: the second of the three calls; no redirect is followed, and nothing is shown."""
    fake.upload_status = status
    with pytest.raises(Unreachable):
        send(media, platforms, Reply("Here", media=IMAGE))
    assert (platforms.sent, [call["method"] for call in platforms.calls if call["method"] == "auth.test"]) == ([], [])


@pytest.mark.parametrize("status", [400, 403, 413])
def test_upload_that_the_file_server_never_takes_is_a_link(
    media: MemoryMedia, platforms: FakePlatforms, fake: FakeSlack, status: int
):
    """platforms.md 3.3, pains.md 13: what would be refused each time is said instead."""
    fake.upload_status = status
    send(media, platforms, Reply("Here", media=IMAGE))
    assert platforms.sent[0]["text"].startswith("Here\n`red.png` (69 B): <http")


@pytest.mark.parametrize(
    ("status", "headers", "kind"),
    [
        ("200 OK", "Content-Type: text/plain", DeliveryUncertain),
        ("200 OK", "Content-Type: application/json", DeliveryUncertain),
        ("502 Bad Gateway", "Content-Type: application/json", DeliveryUncertain),
        ("429 Too Many Requests", "Content-Type: application/json\r\nRetry-After: 7", RateLimited),
    ],
)
def test_answer_that_is_no_json_proves_nothing(media: MemoryMedia, status: str, headers: str, kind: type[Exception]):
    """Something between us and Slack spoke; only a wait that it asks for is clear."""
    answer = f"HTTP/1.1 {status}\r\n{headers}\r\nContent-Length: 4\r\n\r\noops".encode()

    async def story() -> None:
        async with server(answer) as (url, _):
            await slack(media, url).send(Delivery("d", THREAD, Reply("x")))

    with pytest.raises(kind):
        asyncio.run(story())
