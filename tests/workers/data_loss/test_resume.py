"""Resume: a server that lost data goes on, and repeats no number or effect that may be out already."""

from __future__ import annotations

import pytest
from redis.exceptions import ResponseError

from sayso.channels.types import Reply
from sayso.infra.redis.client import connect
from sayso.pending.audit.collector import AuditCollector, UncollectedEntries
from sayso.pending.audit.ledger import FILE, AuditLedger
from sayso.pending.audit.verify import verify
from sayso.pending.sharded_scripts import ShardedScripts, shard_of
from sayso.pending.turn_changes import TurnChange, TurnReply
from sayso.pending.turns import LeaseLost
from sayso.workers.data_loss.guard import DataLossGuard
from sayso.workers.data_loss.resume import RESUME_STEP, halts_of, resume
from sayso.workers.data_loss.watermarks import HaltReason, keys_of
from sayso.workers.scripts import CONVERSATION_SCRIPTS
from sayso.workers.sender import Sent
from tests.contracts.rigs import CHAT, Rig, turn
from tests.pending.state_log import KEY, SIGNER
from tests.workers.fakes import Bot
from tests.workers.killed_client import Fate, FatedRedis, Killed, killed
from tests.workers.servers import put_back, saved

SHARD = shard_of(CHAT.id)
WRITE_COUNTER, IDENTITIES, HALTED = keys_of(SHARD)
#: The answer of a commit.
ANSWER = TurnChange(replies=(TurnReply(Reply("answer")),))


@pytest.fixture
def rig(redis_client):
    """Return a conversation in Redis, watched by one process."""
    rig = Rig(redis_client)
    rig.data_loss_guard = DataLossGuard(connect_like(redis_client))
    rig.data_loss_guard.check_server()
    return rig


def connect_like(client):
    """Return another client of the same server."""
    return connect(f"unix://{client.connection_pool.connection_kwargs['path']}")


def forget(rig, what) -> None:
    """Run `what`, let the guard see it, then restore the server's earlier state, which halts it."""
    before = saved(rig.client)
    what()
    rig.data_loss_guard.check_server()
    put_back(rig.client, before)
    rig.data_loss_guard.check_server()
    assert rig.client.exists(HALTED)


def answered(rig, text: str = "hello") -> str:
    """Accept, answer and send a turn; return the number of its reply."""
    rig.accept(turn(text))
    lease, work = rig.mailbox.lease(CHAT.id, f"token {text}")
    reply = rig.mailbox.commit(lease, work, ANSWER)
    delivery = reply.delivery(lease).id
    rig.outbox.mark_delivered(lease, reply, Sent("m1"))
    rig.mailbox.release(lease)
    return delivery


@pytest.mark.parametrize("known", [True, False])
def test_no_number_is_given_out_twice(rig, known):
    """This holds for a known conversation and for one that started in the lost time."""
    first = [answered(rig)] if known else []
    forgotten = []
    forget(rig, lambda: forgotten.extend(answered(rig, text) for text in ("one", "two")))
    resume(rig.client)
    after = [answered(rig, text) for text in ("three", "four")]
    assert len({*first, *forgotten, *after}) == len(first) + 4
    assert all(int(name.partition("#")[2]) > RESUME_STEP for name in after)


def test_turns_and_leases_have_new_numbers_too(rig):
    """A worker of the lost time has no lease, and its turn's number is not used again."""
    rig.accept(turn("known"))
    held = []
    forget(rig, lambda: held.append(rig.mailbox.lease(CHAT.id, "old")))
    resume(rig.client)
    ((lease, work),) = held
    with pytest.raises(LeaseLost):
        rig.mailbox.commit(lease, work, ANSWER)
    new, same = rig.mailbox.lease(CHAT.id, "new")
    assert new.epoch > RESUME_STEP
    assert (same.seq, same.turn.text) == (work.seq, "known")
    assert rig.accept(turn("next")).seq > RESUME_STEP


def test_burst_across_the_gap_ends_no_other_turn(rig):
    """The joined turns are finished, and the later one is next, whatever numbers lie between."""
    for text in ("one", "two"):
        rig.accept(turn(text))
    forget(rig, lambda: rig.accept(turn("lost")))
    resume(rig.client)
    for text in ("three", "yes", "four"):
        rig.accept(turn(text))
    lease, work = rig.mailbox.lease(CHAT.id, "token")
    joined = work.merge_texts(lambda text: text == "yes")
    assert joined.turn.text == "one\ntwo\nthree"
    rig.mailbox.commit(lease, joined, TurnChange())
    assert rig.mailbox.commit(lease, joined, TurnChange()).turn.text == "yes"


def test_waiting_reply_is_sent_marked(rig):
    """It may have gone out in the lost time."""
    bot = Bot(rig, lines=["Sunny."])
    bot.hear("weather?")
    lease, work = rig.mailbox.lease(CHAT.id, "token")
    rig.mailbox.commit(lease, work, ANSWER)
    forget(rig, lambda: rig.accept(turn("lost")))
    assert resume(rig.client).replies == 1
    assert bot.work() != "answer"
    assert bot.work().endswith("answer")


@pytest.mark.parametrize("answer", ["yes", "tap"])
def test_question_that_may_have_been_answered_runs_nothing(rig, answer):
    """It may have run in the lost time. A second yes does not run it and gets "unknown"."""
    bot = Bot(rig, "A")
    bot.say("delete it")
    tap = bot.buttons[0].data
    forget(rig, lambda: bot.say("yes"))
    assert (bot.deleted, resume(rig.client).actions) == (["A"], 1)
    said = bot.say("yes") if answer == "yes" else bot.say(tap=tap)
    assert "cannot tell" in said
    assert bot.deleted == ["A"]


def test_standing_yes_does_not_come_back(rig):
    """It may have been revoked or used up in the lost time, so the next call is asked about."""
    rule = {"for": "1h", "times": 5, "where": {"name": "A"}}
    bot = Bot(rig, "A", "A", standing=rule)
    bot.say("delete it")
    bot.say(tap=bot.buttons[2].data)
    assert len(rig.client.keys("*:standing:*")) == 1
    forget(rig, lambda: bot.say("/revoke"))
    assert len(rig.client.keys("*:standing:*")) == 1
    resume(rig.client)
    assert rig.client.keys("*:standing:*") == []
    assert "Reply **yes**" in bot.say("delete it again")
    assert bot.deleted == ["A"]


def test_repeated_yes_runs_nothing(rig):
    """The server still has the yes, but not that it was processed."""
    bot = Bot(rig, "A")
    bot.say("delete it")
    bot.hear("yes")
    forget(rig, bot.work)
    resume(rig.client)
    assert "cannot tell" in bot.work()
    assert bot.deleted == ["A"]


def test_plan_that_may_have_run_runs_nothing(rig):
    """Its steps do not run, and none of them is reported as not done."""
    bot = Bot(rig, "A B")
    bot.say("delete them")
    tap = bot.buttons[0].data
    forget(rig, lambda: bot.say("yes"))
    resume(rig.client)
    assert "cannot tell" in bot.say(tap=tap)
    assert {entry["event"] for entry in rig.audit()[-3:]} == {"unknown"}
    assert bot.deleted == ["A", "B"]


def test_resume_killed_anywhere_can_be_repeated(rig, redis_url):
    """No process works in between, and the numbers are the same."""
    bot = Bot(rig, "A")
    bot.say("delete it")
    forget(rig, lambda: bot.say("yes"))
    nth = 0
    while halts_of(rig.client):
        client = FatedRedis.from_url(redis_url, decode_responses=True)
        client.fate = Fate(nth, killed)
        nth += 1
        try:
            resume(client)
        except Killed:
            assert halts_of(rig.client)
    assert nth > 3
    assert "cannot tell" in bot.say("yes")
    assert rig.accept(turn()).seq < 2 * RESUME_STEP


def test_all_processes_go_on_after_the_resume(rig, redis_url):
    """Neither those that knew it before nor those that started while it was empty raise the alarm again."""
    answered(rig)
    new = DataLossGuard(connect(redis_url))
    forget(rig, lambda: answered(rig, "more"))
    new.check_server()
    resume(rig.client)
    for guard in (rig.data_loss_guard, new, rig.data_loss_guard):
        guard.check_server()
        assert not guard.trouble
    assert rig.client.get(HALTED) is None


def test_emptied_server_has_both_identities(rig, redis_url):
    """A new process gave it another identity before an old one looked."""
    answered(rig)
    rig.data_loss_guard.check_server()
    rig.client.flushall()
    new = DataLossGuard(connect(redis_url))
    new.check_server()
    answered(rig)
    new.check_server()
    rig.data_loss_guard.check_server()
    assert str(HaltReason.sum(halts_of(rig.client).values())).startswith(
        "everything it knew is gone"
    )
    resume(rig.client)
    for guard in (rig.data_loss_guard, new):
        guard.check_server()
        assert not guard.trouble
    assert int(answered(rig).partition("#")[2]) > RESUME_STEP


def test_server_that_is_not_halted_is_left_alone(rig):
    """No key changes, and a late preparation is refused."""
    answered(rig)
    before = saved(rig.client)
    assert resume(rig.client) is None
    with pytest.raises(ResponseError, match="RESUMED"):
        ShardedScripts(rig.client, CONVERSATION_SCRIPTS).run(
            "resume_conversation", CHAT.id, {"floor": 5}
        )
    assert saved(rig.client) == before


def test_second_resume_goes_beyond_the_first(rig):
    """This holds even if the first resume was lost."""
    numbers = [answered(rig)]
    for text in "ab":
        forget(rig, lambda text=text: numbers.append(answered(rig, text)))
        resume(rig.client)
        numbers.append(answered(rig, f"{text} again"))
        rig.data_loss_guard.check_server()
    rig.client.flushall()
    rig.data_loss_guard.check_server()
    resume(rig.client)
    numbers.append(answered(rig))
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize(
    "note",
    ["x", "[]", "{}", '{"identity": 1, "remembered": "x", "found": 0, "lost_seconds": null}'],
)
def test_damaged_halt_key_halts_and_can_be_lifted(rig, note):
    """Its existence is enough."""
    before = answered(rig)
    rig.client.set(HALTED, note)
    rig.data_loss_guard.check_server()
    assert rig.data_loss_guard.trouble
    assert resume(rig.client)
    assert answered(rig, "more") != before


def test_audit_log_shows_what_is_missing_and_forks_nowhere(rig, tmp_path):
    """The ledger is ahead of the server. Its entries stay, new ones start beyond, and verify names the gap."""
    auditor = AuditCollector(rig.client, AuditLedger(tmp_path / FILE, SIGNER))
    bot = Bot(rig, "A", "B")
    bot.say("delete it")
    auditor.collect()
    forget(rig, lambda: (bot.say("yes"), auditor.collect()))
    resume(rig.client)
    bot.say("delete the other")
    assert bot.say("yes") == "deleted B"
    auditor.collect()
    faults = verify([tmp_path / FILE], [KEY], uncollected=UncollectedEntries(rig.client)).faults
    last = rig.data_loss_guard.known[SHARD].writes + RESUME_STEP
    assert [str(fault).partition(": ")[2] for fault in faults] == [f"removed (up to {last})"]
