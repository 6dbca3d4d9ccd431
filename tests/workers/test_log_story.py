"""Log lines: an operator reads from them alone why a message was answered, how often, and by which attempt."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
from dataclasses import replace
from pathlib import Path

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from sayso.agent import Agent, AgentConfig, LoggingObserver, ScriptedProvider, ToolCall, tool
from sayso.agent.channel.channel_agent import ChannelAgent
from sayso.channels.base import DeliveryUncertain
from sayso.channels.types import Delivery, Receipt, Received, Reply, Turn
from sayso.config.wiring.observability import EventFormatter
from sayso.infra.concurrency import run_without_loop
from sayso.pending.turns import Lease
from sayso.workers.lease import HeldLease
from sayso.workers.processor import ConversationProcessor
from sayso.workers.sender import ReceiptFiles
from tests.channels.web import services
from tests.contracts.rigs import CHAT, Rig, make_processor, make_sender
from tests.workers.fakes import FakeChannel

PHONE = "+4915100000042"
TURN = Turn(f"{PHONE}:SM7", CHAT, PHONE, text="hello")


@pytest.fixture
def rig() -> Rig | Rig:
    """Return a rig of each kind."""
    return Rig()


@pytest.fixture
def log(print_log) -> io.StringIO:
    """Print the log of this test as lines for people."""
    return print_log(EventFormatter())


def story(log: io.StringIO) -> list[str]:
    """Return the lines that name the conversation, without times and levels; runs of the agent are left out.

    An operator searches for it, too. Threads that earlier tests left behind log what is none of its story.
    """
    lines = [
        line.split(" ", 2)[2]
        for line in log.getvalue().splitlines()
        if re.match(r"\d{4}-\S+ [A-Z]+ ", line)
    ]
    return [line for line in lines if CHAT.id in line and not line.startswith("{")]


def runs(log: io.StringIO) -> list[dict[str, object]]:
    """Return the lines of JSON about runs of the agent."""
    return [
        json.loads(line[line.index("{") :])
        for line in log.getvalue().splitlines()
        if " INFO {" in line
    ]


def web(rig: Rig | Rig):
    """Return a browser that posts the turn as a webhook, each time it posts."""
    channel = services.FakeChannel(Received(turns=(TURN,)))
    channel.name = CHAT.channel
    return services.browser(channel, rig.mailbox)


class Site:
    """A web process and workers. `look`, the tool of the agent, does `happens`, and waits if that is awaitable."""

    def __init__(self, rig: Rig | Rig, happens=lambda: None) -> None:
        self.begun = asyncio.Event()

        @tool(read_only=True)
        async def look() -> str:
            """Look."""
            self.begun.set()
            if waits := happens():
                await waits
            return "seen"

        self.rig, self.web, self.channel = rig, web(rig), FakeChannel()
        config = AgentConfig(observers=[LoggingObserver()])
        self.agent = Agent(
            [look], ScriptedProvider([ToolCall("look", {}), "done", "done again"]), config
        )

    def worker(self) -> ConversationProcessor:
        """Return the processor of a new worker."""
        channels = {CHAT.channel: self.channel}
        agents = {
            CHAT.channel: ChannelAgent(self.agent, self.rig.store, journals=self.rig.journals)
        }
        return make_processor(
            self.rig.mailbox, make_sender(self.rig.outbox, channels), channels, agents
        )

    def work(self) -> None:
        """Let a new worker do what there is to do."""
        asyncio.run(self.worker().run(CHAT.id))


def test_repeated_webhook_is_answered_once(rig: Rig | Rig, log: io.StringIO):
    """Both webhooks name one event and one turn, and the turn was answered once, with one reply."""
    site = Site(rig)
    for _ in range(2):
        assert site.web.post(f"/hooks/{CHAT.channel}").status_code == 200
    site.work()
    ids = f"conversation={CHAT.id} seq=1 event={TURN.event_hash}"
    assert story(log) == [
        f"turn.accepted {ids} outcome=new",
        f"turn.accepted {ids} outcome=duplicate",
        f"turn.answered attempt=1 replies=1 {ids}",
        f"reply.sent delivery={CHAT.id}#1 suspect=False conversation={CHAT.id}",
    ]


def test_turn_that_is_done_again_after_a_lost_lease(rig: Rig | Rig, log: io.StringIO):
    """The first worker left the conversation in the middle of the turn. The second one died. The third one answered."""
    seconds = iter(["second"])

    def lose_lease() -> None:
        for worker in seconds:
            rig.end_lease()
            run_without_loop(rig.mailbox.lease(CHAT.id, worker))

    site = Site(rig, lose_lease)
    site.web.post(f"/hooks/{CHAT.channel}")
    site.work()
    rig.end_lease()
    site.work()
    assert story(log) == [
        f"turn.accepted conversation={CHAT.id} seq=1 event={TURN.event_hash} outcome=new",
        f"conversation.left conversation={CHAT.id} seq=1 reason=LeaseLost",
        f"turn.answered attempt=3 replies=1 conversation={CHAT.id} seq=1 event={TURN.event_hash}",
        f"reply.sent delivery={CHAT.id}#1 suspect=False conversation={CHAT.id}",
    ]


def test_reply_that_may_have_arrived_is_sent_again(rig: Rig | Rig, log: io.StringIO):
    """The turn was answered once. Its reply came twice, because the platform's answer was lost."""
    site = Site(rig)
    site.channel.errors = [DeliveryUncertain("no answer")]
    site.web.post(f"/hooks/{CHAT.channel}")
    site.work()
    rig.pass_time(60)
    site.work()
    accepted, answered, postponed, left, sent = story(log)
    assert (accepted.split()[0], answered.split()[0]) == ("turn.accepted", "turn.answered")
    assert postponed.startswith(f"reply.postponed delivery={CHAT.id}#1 reason=no answer seconds=")
    assert left == f"conversation.left conversation={CHAT.id} seq=0 reason=ConversationParked"
    assert sent == f"reply.sent delivery={CHAT.id}#1 suspect=True conversation={CHAT.id}"


def test_run_of_the_agent_names_its_turn(rig: Rig | Rig, log: io.StringIO):
    """So that a run id leads to the conversation and back. A line of JSON stays one."""
    site = Site(rig)
    site.web.post(f"/hooks/{CHAT.channel}")
    site.work()
    assert {(line["conversation"], line["seq"], line["turn_event"]) for line in runs(log)} == {
        (CHAT.id, 1, TURN.event_hash)
    }
    assert len({line["run_id"] for line in runs(log)}) == 1
    assert all(line.endswith("}") for line in log.getvalue().splitlines() if " INFO {" in line)


def test_turns_that_are_answered_together_name_the_last_one(rig: Rig | Rig, log: io.StringIO):
    """The line names the numbers of the first and of the last one."""
    site, album = Site(rig), replace(TURN, group="album")
    for event in ("e1", "e2"):
        rig.accept(replace(album, event_id=event))
    rig.pass_time(2)
    site.work()
    assert any(
        line.startswith("turn.answered") and "upto=2" in line and "seq=1" in line
        for line in story(log)
    )


def test_log_has_no_event_id_in_clear(rig: Rig | Rig, log: io.StringIO):
    """An event id may contain a phone number or a token."""
    site = Site(rig)
    site.web.post(f"/hooks/{CHAT.channel}")
    site.work()
    assert (PHONE in log.getvalue(), "SM7" in log.getvalue()) == (False, False)


def test_line_about_a_turn_names_it(rig: Rig | Rig, log: io.StringIO):
    """Also where the code that writes it knows no turn."""

    def fail() -> None:
        logging.getLogger("sayso.agent").warning("budget.unknown", extra={"reason": "RuntimeError"})

    site = Site(rig, fail)
    site.web.post(f"/hooks/{CHAT.channel}")
    site.work()
    assert (
        f"budget.unknown reason=RuntimeError conversation={CHAT.id} seq=1 event={TURN.event_hash}"
        in story(log)
    )


def test_lease_that_is_not_renewed_names_its_turn(log: io.StringIO):
    """The lease is renewed in a task of its own."""

    async def away(_: Lease) -> int:
        raise RedisConnectionError("away")

    held = HeldLease(Lease(CHAT.id, 1, "token"), 0.0, away)
    held.turn_seq = 7
    asyncio.run(held._renew())
    assert story(log) == [f"lease.not_renewed conversation={CHAT.id} seq=7 reason=ConnectionError"]


def test_receipt_that_is_not_noted_names_its_delivery(tmp_path: Path, log: io.StringIO):
    """After a crash this reply may come twice."""
    (tmp_path / "receipts").touch()
    ReceiptFiles(tmp_path / "receipts", "w1").note(
        Delivery(f"{CHAT.id}#3", CHAT, Reply("hello")), Receipt("m1")
    )
    assert story(log) == [f"receipt.not_noted delivery={CHAT.id}#3 reason=FileExistsError"]


def test_worker_that_is_cut_off_says_which_turn_it_leaves(rig: Rig | Rig, log: io.StringIO):
    """The next worker does the turn again."""
    seconds = iter([60.0])
    site = Site(rig, lambda: asyncio.sleep(next(seconds, 0.0)))
    site.web.post(f"/hooks/{CHAT.channel}")

    async def cut_off() -> None:
        work = asyncio.create_task(site.worker().run(CHAT.id))
        await site.begun.wait()
        work.cancel()
        await asyncio.wait([work])

    asyncio.run(cut_off())
    assert story(log)[1:] == [f"conversation.left conversation={CHAT.id} seq=1 reason=cut off"]
    site.work()
    assert story(log)[-2].endswith(
        f"attempt=2 replies=1 conversation={CHAT.id} seq=1 event={TURN.event_hash}"
    )
