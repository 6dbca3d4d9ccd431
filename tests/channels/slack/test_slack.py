"""Slack's own rules: fresh signatures, mentions that arrive twice, threads, commands and blocks."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from sayso.channels.base import Forbidden, Refused
from sayso.channels.slack.adapter import SlackChannel
from sayso.channels.types import Button, Conversation, Delivery, Reply, Turn
from sayso.pending.turn_changes import TurnChange
from sayso.testing.platforms import webhooks as signing
from sayso.testing.platforms.fake_platforms import FakePlatforms
from sayso.workers.mailbox import InboxLimits
from tests.channels.harness import IMAGE, NOW, MemoryMedia, slack, slack_hook
from tests.contracts.rigs import Rig

THREAD = Conversation("sl", "C0OPS", "1795204800.000150")
YES_NO = (Button("Yes", "a:1:yes", "primary"), Button("No", "a:1:no", "danger"))


def send(channel: SlackChannel, reply: Reply, conversation: Conversation = THREAD):
    """Send one piece."""
    return asyncio.run(channel.send(Delivery("d", conversation, reply)))


def read(media: MemoryMedia, body: bytes) -> Turn:
    """Return the turn of one request."""
    return slack(media, None).receive(slack_hook(body)).turns[0]


@pytest.mark.parametrize("late", [301, -301, 10**9])
def test_old_signature_is_forbidden(media: MemoryMedia, late: float):
    """platforms.md 3.2: a recorded request cannot be replayed later."""
    with pytest.raises(Forbidden):
        slack(media, None).receive(slack_hook(signing.slack_text("1.1", "yes"), now=NOW + late))
    assert (
        slack(media, None)
        .receive(slack_hook(signing.slack_text("1.1", "yes"), now=NOW + 299))
        .turns
    )


def test_mention_that_arrives_twice_is_one_event(media: MemoryMedia):
    """platforms.md 3.1: Slack sends a mention twice under different event ids."""
    text = "<@U0BOT> delete it"
    mention, twin = (
        read(media, signing.slack_text("1.1", text, channel="C0OPS", kind=kind))
        for kind in ("app_mention", "message")
    )
    assert mention == twin
    assert (mention.event_id, mention.text, mention.addressed) == (
        "T0ACME:C0OPS:1.1",
        "delete it",
        True,
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<@U0BOT> yes", "yes"),
        ("<@U0BOT>, yes", "yes"),
        ("<@U0BOT|acme>: 4711", "4711"),
        ("yes <@U0BOT>", "yes"),
        ("yes, <@U0BOT>", "yes"),
        ("yes, <@U0BOT>, please", "yes, please"),
        ("<@U0BOT> <@U0BOT> no", "no"),
        ("<@U0BOT> /help", "/help"),
        ("<@U0BOT> tell <@U0BOB>", "tell @U0BOB"),
        ("<@U0BOB> yes", "@U0BOB yes"),
    ],
)
def test_own_name_is_no_part_of_the_words(media: MemoryMedia, text: str, words: str):
    """The mention says for whom a message is: before the words, after them, with a comma or a colon."""
    assert read(media, signing.slack_text("1.1", text, channel="C0OPS")).text == words


@pytest.mark.parametrize("kinds", [("app_mention", "message"), ("message", "app_mention")])
@pytest.mark.parametrize("refused", [False, True])
def test_mention_that_arrives_twice_is_stored_once(
    media: MemoryMedia, kinds: tuple[str, str], *, refused: bool
):
    """platforms.md 3.1: the order does not matter; if the first one was refused, the second one is answered."""
    rig = Rig(limits=InboxLimits(waiting=1))
    twins = [
        read(media, signing.slack_text("1.1", "<@U0BOT> hi", channel="C0OPS", kind=kind))
        for kind in kinds
    ]
    if refused:  # another turn fills the mailbox until it is answered
        other = replace(twins[0], event_id="other", message_id="2.2")
        assert rig.accept(other).outcome == "new"
        lease, work = rig.mailbox.lease(other.conversation.id, "w")
        assert rig.accept(twins[0]).outcome == "full"
        rig.mailbox.commit(lease, work, TurnChange())
    outcomes = [rig.accept(turn).outcome for turn in ([twins[1], twins[0]] if refused else twins)]
    assert outcomes == ["new", "duplicate"]


@pytest.mark.parametrize("extra", [{"user": "U0BOT"}, {"bot_id": "B0OTHER"}, {"user": ""}])
def test_bots_are_ignored(media: MemoryMedia, extra: dict):
    """platforms.md 3.1: neither the bot's own messages nor another bot's are a person's say-so."""
    body = signing.slack_text("1.1", "yes", **extra)
    assert slack(media, None).receive(slack_hook(body)).ignored == "sent by a bot"


@pytest.mark.parametrize(
    ("text", "read_as"),
    [
        ("<@U0BOT>: yes", "yes"),
        ("hey <@U0BOT|bot> there", "hey there"),
        ("ask <@U0BOB> in <#C0OPS|ops> or <#C1>", "ask @U0BOB in #ops or #C1"),
        (
            "<https://a.b/x|x> <https://a.b> <https://a.b|a.b>",
            "x (https://a.b/x) https://a.b https://a.b",
        ),
        ("<mailto:a@b.c|a@b.c> <!here> <!subteam^S1|@ops>", "a@b.c @here @ops"),
        ("ask <!subteam^S0OPS>", "ask @S0OPS"),
        ("1 &lt; 2 &amp;amp; 3", "1 < 2 &amp; 3"),
        ("&lt;@U0BOT&gt; no token", "<@U0BOT> no token"),
    ],
)
def test_text_is_read_as_people_see_it(media: MemoryMedia, text: str, read_as: str):
    """platforms.md 3.1: the adapter reads tokens before escapes, so typed text never becomes a token."""
    assert read(media, signing.slack_text("1.1", text)).text == read_as


@pytest.mark.parametrize(
    ("extra", "thread", "addressed"),
    [
        ({"channel": "D0ADA"}, "1.1", True),
        ({"channel": "D0ADA", "thread_ts": "1.1"}, "1.1", True),
        ({"channel": "D0ADA", "thread_ts": "1.0"}, "1.0", True),
        ({"channel": "C0OPS"}, "1.1", False),
        ({"channel": "C0OPS", "thread_ts": "1.0"}, "1.0", False),
    ],
)
def test_thread_of_a_message_is_the_thread_of_its_turn(
    media: MemoryMedia, extra: dict, thread: str, addressed: bool
):
    """platforms.md 3.1: it is thread_ts or ts.

    Slack's agent view lists the threads of a direct message, too.
    """
    turn = read(media, signing.slack_text("1.1", "hello", **extra))
    assert (turn.conversation.thread, turn.addressed) == (thread, addressed)


def test_tap_belongs_to_the_conversation_of_its_question(
    media: MemoryMedia, platforms: FakePlatforms
):
    """That holds even if Slack's own thread field differs, as below a slash command."""
    channel = slack(media, platforms.slack_url)
    asked = channel.receive(
        slack_hook(signing.slack_command("1.2", "my payload", channel="C0OPS"))
    ).turns[0]
    assert (asked.text, asked.conversation) == ("my payload", Conversation("sl", "C0OPS"))
    for conversation in (asked.conversation, THREAD, Conversation("sl", "D0ADA")):
        send(channel, Reply("Sure?", YES_NO), conversation)
        block_id = platforms.sent[-1]["raw"]["blocks"][-1]["block_id"]
        tap = signing.slack_tap(
            "3.4", "a:1:yes", channel=conversation.chat, message_ts="9.9", block_id=block_id
        )
        assert read(media, tap).conversation == conversation


def test_bare_command_asks_for_help(media: MemoryMedia):
    """platforms.md 3.1: a command without a text is a question."""
    turn = read(media, signing.slack_command("1.2.3", ""))
    assert (turn.text, turn.event_id) == ("/help", "1.2.3")


def test_retry_headers_do_not_drop_a_message(media: MemoryMedia):
    """platforms.md 3.1: x-slack-retry-num drops no message, since the first delivery may never have arrived."""
    headers, body = signing.slack_hook(
        "slack-test-signing-secret", signing.slack_text("1.1", "hi"), NOW
    )
    hook = slack_hook(signing.slack_text("1.1", "hi"))
    retried = type(hook)(hook.url, {**headers, "x-slack-retry-num": "1"}, body, now=NOW)
    assert slack(media, None).receive(retried) == slack(media, None).receive(hook)


def test_handshake_without_a_signature_is_forbidden(media: MemoryMedia):
    """platforms.md 3.2: the adapter verifies a request before it returns the challenge, like every other request."""
    body = b'{"type": "url_verification", "challenge": "c"}'
    assert "c" in slack(media, None).receive(slack_hook(body)).answer.body
    with pytest.raises(Forbidden):
        slack(media, None).receive(replace(slack_hook(body), headers={}))


@pytest.mark.parametrize("ts", ["1795204800.100000", "1795204800.000000", "1.10"])
def test_timestamps_are_kept_as_written(media: MemoryMedia, ts: str):
    """platforms.md 3.1: a ts is an id made of digits; as a number it would lose its zeros."""
    turn = read(media, signing.slack_text(ts, "hi", channel="C0OPS"))
    assert (turn.message_id, turn.conversation.thread, turn.event_id) == (
        ts,
        ts,
        f"T0ACME:C0OPS:{ts}",
    )


def test_event_id_has_the_authorized_team(media: MemoryMedia):
    """platforms.md 3.1: in a shared channel team_id may be the partner's; authorizations[0] is ours."""
    event = json.loads(signing.slack_text("1.1", "hi", channel="C0OPS"))
    shared = json.dumps({**event, "team_id": "T0PARTNER"}).encode()
    assert read(media, shared).event_id == "T0ACME:C0OPS:1.1"


def test_person_who_installed_the_app_is_not_the_bot(media: MemoryMedia):
    """platforms.md 3.1: an authorization may be a person's, and that person's messages are not the bot's own."""
    event = json.loads(signing.slack_text("1.1", "hi"))
    event["authorizations"][0] |= {"user_id": "U0ADA", "is_bot": False}
    assert read(media, json.dumps(event).encode()).text == "hi"


def test_question_has_text_beside_blocks_and_distinct_action_ids(
    media: MemoryMedia, platforms: FakePlatforms
):
    """platforms.md 3.3: notifications show the text alone; two buttons of one message share no action_id."""
    send(slack(media, platforms.slack_url), Reply("Sure?", YES_NO))
    raw = platforms.sent[0]["raw"]
    ids = [key["action_id"] for block in raw["blocks"] for key in block.get("elements", ())]
    assert (raw["text"], len(set(ids)), len(ids)) == ("Sure?", 2, 2)


def test_refused_blocks_are_sent_as_text_once(media: MemoryMedia, platforms: FakePlatforms):
    """platforms.md 3.4: the text alone still asks for a typed answer."""
    platforms.script("slack", "invalid_blocks")
    send(slack(media, platforms.slack_url), Reply("Sure?", YES_NO))
    assert (platforms.sent[0]["text"], platforms.sent[0]["buttons"]) == ("Sure?", [])
    platforms.script("slack", "invalid_blocks", times=2)
    with pytest.raises(Refused, match="invalid_blocks"):
        send(slack(media, platforms.slack_url), Reply("Sure?", YES_NO))


def test_message_never_pings_or_unfurls(media: MemoryMedia, platforms: FakePlatforms):
    """platforms.md 3.3: a model's text notifies no user and loads no preview."""
    send(slack(media, platforms.slack_url), Reply("<!channel> `<@U1>` https://a.b"))
    raw = platforms.sent[0]["raw"]
    assert "<!" not in raw["text"] + str(raw["blocks"])
    assert "<@" not in raw["text"] + str(raw["blocks"])
    assert (raw["unfurl_links"], raw["unfurl_media"], raw["thread_ts"]) == (
        False,
        False,
        THREAD.thread,
    )


@pytest.mark.parametrize(
    "text", ["see https://a.b", "[x](https://a.b)", "@channel look", "mail a@b.c"]
)
def test_text_with_links_or_names_is_sent_apart_from_its_file(media: MemoryMedia, text: str):
    """platforms.md 3.3: a file's comment has no option that stops Slack from expanding links and names."""
    file, words = slack(media, None).split(Reply(text, media=IMAGE))
    assert (file.text, words.text, words.media) == ("", text, None)


def test_picture_keeps_its_thread_and_text(media: MemoryMedia, platforms: FakePlatforms):
    """A file is shared in the thread of its conversation."""
    send(slack(media, platforms.slack_url), Reply("*Chart*", media=IMAGE))
    sent = platforms.sent[0]
    assert (sent["chat"], sent["thread"], sent["text"]) == ("C0OPS", THREAD.thread, "_Chart_")


@pytest.mark.parametrize("field", ["bot_token", "signing_secret"])
def test_empty_settings_are_refused(media: MemoryMedia, field: str):
    """platforms.md 3.2: an empty secret would verify a signature made with no key."""
    with pytest.raises(ValueError, match=field):
        slack(media, None, **{field: " "})
