"""Slack's errors: each row of platforms.md 3.4 has its reaction, and no error is ignored."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest

from sayso.channels.base import (
    AddressBarred,
    AddressClosed,
    ChannelDown,
    ChatBarred,
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

#: The rows of platforms.md 3.4: Slack's errors, and the error that sending a text raises. None: the text still arrives.
ROWS: list[tuple[str, type[SendError] | None]] = [
    ("ratelimited rate_limited message_limit_exceeded team_added_to_org 429", RateLimited),
    (
        "token_revoked token_expired account_inactive invalid_auth not_authed org_login_required",
        ChannelDown,
    ),
    ("missing_scope not_allowed_token_type", ChannelDown),
    ("no_permission", Refused),
    ("channel_not_found is_archived user_not_found user_not_in_channel", AddressClosed),
    ("team_access_not_granted", AddressClosed),
    (
        "thread_locked restricted_action_thread_only_channel restricted_action_thread_locked",
        AddressBarred,
    ),
    (
        "messages_tab_disabled not_in_channel restricted_action restricted_action_read_only_channel",
        ChatBarred,
    ),
    ("cannot_reply_to_message", AddressClosed),
    (
        "no_text invalid_blocks invalid_blocks_format msg_blocks_too_long msg_too_long markdown_text_conflict",
        None,
    ),
    (
        "expired_trigger_id exchanged_trigger_id streaming_state_conflict an_error_of_tomorrow",
        Refused,
    ),
    (
        "internal_error fatal_error service_unavailable request_timeout 500 502 503",
        DeliveryUncertain,
    ),
]
CASES = [(error, kind) for errors, kind in ROWS for error in errors.split()]


@pytest.fixture
def fake(platforms: FakePlatforms) -> Iterator[FakeSlack]:
    """Yield Slack's fake, with all its scopes and a file server that works again when the test ends."""
    fake = platforms.fakes["slack"]
    assert isinstance(fake, FakeSlack)
    yield fake
    fake.scopes, fake.upload_status = SCOPES, 200


def send(
    media: MemoryMedia, platforms: FakePlatforms, reply: Reply, to: Conversation = THREAD
) -> Receipt:
    """Send one piece and return its receipt."""
    return asyncio.run(slack(media, platforms.slack_url).send(Delivery("d", to, reply)))


@pytest.mark.parametrize(("error", "kind"), CASES)
def test_each_error_has_its_reaction(
    media: MemoryMedia, platforms: FakePlatforms, error: str, kind: type[SendError] | None
):
    """platforms.md 3.3, 3.4: each error code raises exactly its kind of error, or the text arrives."""
    platforms.script("slack", error)
    if kind is None:
        assert send(media, platforms, Reply("x")).message_id
        return
    with pytest.raises(kind) as caught:
        send(media, platforms, Reply("x"))
    assert type(caught.value) is kind
    assert platforms.sent == []


def test_every_known_error_has_its_row():
    """platforms.md 3.4: each code of the adapter has a row here, or is tested with the edits."""
    edits = {code for code, reaction in REACTIONS.items() if reaction == "unchangeable"}
    deletions = {"cant_delete_message", "compliance_exports_prevent_deletion"}
    assert edits == {"message_not_found", "cant_update_message", "edit_window_closed", *deletions}
    assert {code for code in REACTIONS if code not in edits} <= {error for error, _ in CASES}
    assert reaction_to("restricted_action_non_threadable_channel") == "barred"


def test_text_that_is_refused_twice_is_refused(media: MemoryMedia, platforms: FakePlatforms):
    """platforms.md 3.4: the adapter sends the plain text once and no second time."""
    platforms.script("slack", "msg_blocks_too_long", times=2)
    with pytest.raises(Refused, match="msg_blocks_too_long"):
        send(media, platforms, Reply("x"))


def test_missing_scope_is_named_with_its_cure(
    media: MemoryMedia, platforms: FakePlatforms, fake: FakeSlack
):
    """platforms.md 3.4: the reply waits until the app has its scope; the error names the scope for the operator."""
    fake.scopes = SCOPES - {"chat:write"}
    with pytest.raises(ChannelDown, match="add the scope chat:write and install the app again"):
        send(media, platforms, Reply("x"))


def test_missing_scope_of_one_method_affects_no_other(
    media: MemoryMedia, platforms: FakePlatforms, fake: FakeSlack
):
    """platforms.md 3.4: without im:write the bot opens no direct message, but every other reply goes out."""
    fake.scopes = SCOPES - {"im:write"}
    with pytest.raises(Refused, match="im:write") as caught:
        send(media, platforms, Reply("x"), Conversation("sl", "U0ADA"))
    assert type(caught.value) is Refused
    assert send(media, platforms, Reply("x"))


def test_error_outside_a_channel_asks_for_an_invitation(
    media: MemoryMedia, platforms: FakePlatforms
):
    """platforms.md 3.4: not_in_channel means that the app needs an invitation."""
    platforms.script("slack", "not_in_channel")
    with pytest.raises(AddressClosed, match="invite the app"):
        send(media, platforms, Reply("x"))


@pytest.mark.parametrize(
    "error",
    [
        "file_uploads_disabled",
        "storage_limit_reached",
        "file_upload_size_restricted",
        "missing_scope",
    ],
)
def test_file_refused_by_slack_is_a_link(media: MemoryMedia, platforms: FakePlatforms, error: str):
    """platforms.md 3.3, pains.md 13: name, size and link follow the text of the file."""
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


def test_file_without_its_scope_is_a_link(
    media: MemoryMedia, platforms: FakePlatforms, fake: FakeSlack
):
    """platforms.md 3.4: Slack already refuses the first of the three calls."""
    fake.scopes = SCOPES - {"files:write"}
    send(media, platforms, Reply(media=replace(IMAGE, filename="a`b_c_d.png")))
    assert platforms.sent[0]["text"].startswith("a`b_c_d.png (69 B): <http")


def test_file_to_a_closed_address_is_not_sent_as_a_link(
    media: MemoryMedia, platforms: FakePlatforms
):
    """At a closed address a link would not arrive either."""
    platforms.script("slack", "is_archived")
    with pytest.raises(AddressClosed):
        send(media, platforms, Reply(media=IMAGE))


@pytest.mark.parametrize("error", ["drop", "lost", "internal_error"])
def test_file_with_an_unclear_upload_is_not_shared_again(
    media: MemoryMedia, platforms: FakePlatforms, error: str
):
    """platforms.md 3.3: the last of the three calls makes the file visible."""
    platforms.script("slack", error)
    with pytest.raises(DeliveryUncertain):
        send(media, platforms, Reply(media=IMAGE))


def test_upload_that_fails_before_sharing_is_repeated(media: MemoryMedia):
    """platforms.md 3.3: the file is not visible yet."""

    async def story() -> None:
        async with server(b"") as (url, _):
            await slack(media, url).send(Delivery("d", THREAD, Reply(media=IMAGE)))

    with pytest.raises(Unreachable):
        asyncio.run(story())


@pytest.mark.parametrize("status", [302, 429, 500, 503])
def test_upload_with_a_temporary_error_is_repeated(
    media: MemoryMedia, platforms: FakePlatforms, fake: FakeSlack, status: int
):
    """platforms.md 3.3: the second of the three calls follows no redirect and makes nothing visible."""
    fake.upload_status = status
    with pytest.raises(Unreachable):
        send(media, platforms, Reply("Here", media=IMAGE))
    assert (
        platforms.sent,
        [call["method"] for call in platforms.calls if call["method"] == "auth.test"],
    ) == ([], [])


@pytest.mark.parametrize(
    ("name", "shown"),
    [("__init__.zip", "`__init__.zip`"), ("a`b_c_`.pdf", "a`\u200bb_c_`\u200b.pdf")],
)
def test_name_of_a_file_beside_its_link_is_whole(
    media: MemoryMedia, platforms: FakePlatforms, fake: FakeSlack, name: str, shown: str
):
    """No mark in it formats, and it is no link of its own."""
    fake.upload_status = 413
    send(media, platforms, Reply(media=replace(IMAGE, filename=name)))
    assert platforms.sent[0]["text"].startswith(f"{shown} (69 B): <http")


@pytest.mark.parametrize("status", [400, 403, 413])
def test_upload_with_a_permanent_error_is_a_link(
    media: MemoryMedia, platforms: FakePlatforms, fake: FakeSlack, status: int
):
    """platforms.md 3.3, pains.md 13: Slack would refuse the file each time, so the text has a link."""
    fake.upload_status = status
    send(media, platforms, Reply("Here", media=IMAGE))
    assert platforms.sent[0]["text"].startswith("Here\n`red.png` (69 B): <http")


@pytest.mark.parametrize(
    ("status", "headers", "kind"),
    [
        ("200 OK", "Content-Type: text/plain", DeliveryUncertain),
        ("403 Forbidden", "Content-Type: text/plain", DeliveryUncertain),
        ("200 OK", "Content-Type: text/html", DeliveryUncertain),
        ("200 OK", "Content-Type: application/json", DeliveryUncertain),
        ("502 Bad Gateway", "Content-Type: application/json", DeliveryUncertain),
        ("429 Too Many Requests", "Content-Type: application/json\r\nRetry-After: 7", RateLimited),
    ],
)
def test_answer_that_is_not_json_is_uncertain(
    media: MemoryMedia, status: str, headers: str, kind: type[Exception]
):
    """A proxy may have sent the answer; only its Retry-After is reliable."""
    answer = f"HTTP/1.1 {status}\r\n{headers}\r\nContent-Length: 4\r\n\r\noops".encode()

    async def story() -> None:
        async with server(answer) as (url, _):
            await slack(media, url).send(Delivery("d", THREAD, Reply("x")))

    with pytest.raises(kind):
        asyncio.run(story())
