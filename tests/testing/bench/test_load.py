"""SlackLoad: the Slack of `sayso bench` takes every call that the channel makes."""

from __future__ import annotations

import asyncio
from typing import Any

from sayso.channels.types import Conversation, Delivery, Reply, Turn
from sayso.testing.bench.load import SlackLoad
from tests.channels.harness import MemoryMedia, slack


def test_status_is_no_answer() -> None:
    """The channel shows that it works and that it is ready around each answer."""
    conversation = Conversation("desk", "D0000001", "1795204799.000100")
    failures = []
    turn = Turn("e", conversation, "U1", text="hi", message_id="1795204800.000001")

    def note(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        failures.append(context)

    async def scene() -> list[str]:
        asyncio.get_running_loop().set_exception_handler(note)
        async with SlackLoad() as load:
            channel = slack(MemoryMedia(), load.url)
            await channel.show_typing(turn)
            await channel.send(Delivery("d", conversation, Reply("hello")))
            await channel.show_state(conversation, "active", after=turn.event_id)
            return [text for _, text in load.answers[conversation.chat]]

    assert (asyncio.run(scene()), failures) == (["hello"], [])
