"""Aliases: a conversation with two ids is one. Turns under the second id run under the first, once."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sayso.channels.base import Refused
from sayso.channels.types import Conversation, Tap
from sayso.testing.platforms import webhooks as signing
from sayso.testing.platforms.fake_platforms import FakePlatforms
from sayso.workers.mailbox import InboxLimits
from tests.channels.harness import slack, slack_hook
from tests.contracts.rigs import CHAT, Rig, make_processor, make_sender, turn
from tests.workers.fakes import Bot

SECOND = Conversation("chat", "U0ADA")


class Names:
    """A channel on which the conversation has a second id; an unknown id raises an error."""

    async def main_address(self, conversation: Conversation) -> Conversation:
        """Return the first id."""
        if conversation.chat == "U0GONE":
            raise Refused("nobody")
        return CHAT if conversation == SECOND else conversation


def relaying(bot: Bot) -> Bot:
    """Return the bot on a channel with second ids."""
    bot.channel.main_address = Names().main_address
    return bot


def work(bot: Bot, *conversations: Conversation) -> list[tuple[str, str]]:
    """Process these in order; return where texts arrived, and the texts."""
    for conversation in conversations:
        asyncio.run(bot.processor.run(conversation.id))
    return [(delivery.conversation.chat, delivery.reply.text) for delivery in bot.channel.sent]


def test_yes_under_one_id_confirms_the_question_under_the_other(make_bot):
    """The question goes to the conversation in which its person writes, so that a typed yes is in scope."""
    bot = relaying(make_bot("A"))
    bot.rig.accept(replace(turn("/clean"), conversation=SECOND))
    sent = work(bot, SECOND, CHAT)
    assert ([chat for chat, _ in sent], "Delete A" in sent[0][1], bot.deleted) == (
        ["room"],
        True,
        [],
    )
    bot.say("yes")
    assert bot.deleted == ["A"]


def test_tap_is_answered_where_it_was_asked():
    """A question that was asked under the second id waits there."""
    bot = relaying(Bot(Rig()))
    bot.rig.accept(replace(turn(tap="x:1:yes"), conversation=SECOND, tap=Tap("x:1:yes")))
    assert [chat for chat, _ in work(bot, SECOND, CHAT)] == ["U0ADA"]


def test_turn_with_an_unknown_alias_is_answered_under_its_own_id(make_bot):
    """The person gets an answer even if the other id cannot be found."""
    bot, gone = relaying(make_bot(lines=["hello"])), Conversation("chat", "U0GONE")
    bot.rig.accept(replace(turn("hi"), conversation=gone))
    assert work(bot, gone, CHAT) == [("U0GONE", "hello")]


def test_worker_that_dies_after_forwarding_forwards_once(make_bot):
    """The repeated turn is a duplicate there."""
    bot = relaying(make_bot(lines=["hello", "twice"]))
    given = replace(turn("hi"), conversation=SECOND)
    bot.rig.accept(given)
    bot.rig.accept(replace(given, conversation=CHAT))  # as the dead one did
    assert work(bot, SECOND, CHAT, CHAT) == [("room", "hello")]
    assert bot.rig.mailbox.lease(SECOND.id, "next")[1] is None


def test_forwarded_burst_is_not_forwarded_again_in_pieces():
    """Its worker died right after it. The next one forwards each turn by itself and finds each there already."""
    bot = relaying(Bot(Rig(), lines=["hello"]))
    turns = replace(bot.processor.turns, joins=True)
    processor = replace(bot.processor, turns=turns)
    for text in ("one", "two"):
        bot.rig.accept(replace(turn(text), conversation=SECOND))
    _, first = bot.rig.mailbox.lease(SECOND.id, "dying")
    assert asyncio.run(turns._forward(turns._joined(first)))
    bot.rig.pass_time(100)
    for conversation in (SECOND, CHAT):
        asyncio.run(processor.run(conversation.id))
    assert [message.content for message in bot.provider.requests[-1].messages] == ["one\ntwo"]


def test_refusal_under_the_first_id_is_told_there():
    """A full mailbox is full for turns under both ids."""
    bot = relaying(Bot(Rig(limits=InboxLimits(waiting=1)), lines=["one", "two"]))
    bot.rig.accept(turn("first"))
    bot.rig.accept(replace(turn("second"), conversation=SECOND))
    sent = work(bot, SECOND, CHAT)
    assert ({chat for chat, _ in sent}, len(sent)) == ({"room"}, 2)


@pytest.mark.parametrize("kind", ["shortcut", "view_submission"])
def test_typed_yes_answers_what_a_shortcut_or_a_form_of_slack_began(kind: str):
    """platforms.md 3.1: a global shortcut and a form have no channel, and typed texts come from D…: one place."""
    view = {"id": "V1", "title": {"text": "Clean"}}
    began = {"callback_id": "clean", "action_ts": "1.2"} if kind == "shortcut" else {"view": view}
    with FakePlatforms() as platforms:
        channel = slack(None, platforms.slack_url, view="none")
        rig = Rig()
        bot = Bot(rig, "A", lines=["done"])
        sender = make_sender(rig.outbox, {"sl": channel})
        processor = make_processor(rig.mailbox, sender, {"sl": channel}, {"sl": bot.agent})
        for body in (
            signing.slack_interaction(kind, trigger_id="1.2", **began),
            signing.slack_text("1795204800.000100", "yes"),
        ):
            (came,) = channel.receive(slack_hook(body)).turns
            rig.accept(came)
            for chat in (came.conversation, Conversation("sl", "D0ADA")):
                asyncio.run(processor.run(chat.id))
    assert ({entry["chat"] for entry in platforms.sent}, bot.deleted) == ({"D0ADA"}, ["A"])
