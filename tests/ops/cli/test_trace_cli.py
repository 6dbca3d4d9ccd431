"""`sayso trace`: the operator gives any id of a message and reads why it was answered as it was."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from redis.exceptions import RedisError
from rq.suspension import suspend

from sayso.agent.channel.behavior import ChannelBehavior
from sayso.agent.channel.channel_agent import ChannelAgent
from sayso.channels.base import DeliveryUncertain, SendError
from sayso.channels.types import digest
from sayso.infra.redis.client import connect
from sayso.ops.checks.story import MessageStory, TracedReply, TracedTurn, answers
from sayso.ops.cli.main import main
from sayso.pending.audit.collector import AuditCollector
from sayso.pending.audit.entries import EntrySigner
from sayso.pending.audit.ledger import FILE, AuditLedger
from sayso.workers.recovery import Heartbeat
from tests.config.processes import free_port
from tests.contracts.rigs import CHAT, Rig, turn
from tests.workers.fakes import Bot, FakeAgent

PREFIX = "sayso:shop:"
ASK, YES = "update-471", "SM-yes*[1]"


@pytest.fixture
def rig(redis_client, redis_url, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    """Return a conversation in the Redis that the environment names."""
    monkeypatch.setenv("REDIS_URL", redis_url)
    monkeypatch.setenv("SAYSO_DATA", str(tmp_path))
    monkeypatch.setenv("SAYSO_CONFIG", str(tmp_path / "shop.yaml"))
    (tmp_path / "shop.yaml").write_text(
        "agent: {model: offline}\nchannels: {web: {platform: console}}\n"
    )
    return Rig(redis_client, prefix=PREFIX)


@pytest.fixture
def bot(rig: Rig) -> Bot:
    """Return a bot that was told to delete INV-42, asked, and did it after a yes."""
    bot = Bot(rig, "INV-42")
    bot.say("please delete it", event=ASK)
    bot.say("yes", event=YES)
    return bot


def collect(rig: Rig, data: Path) -> None:
    """Move the audit entries into the ledger, as a worker does each second."""
    folder = data / "bots" / "shop"
    folder.mkdir(parents=True)
    AuditCollector(
        rig.client, AuditLedger(folder / FILE, EntrySigner(["key"])), prefix=PREFIX
    ).collect()


def trace(*args: str) -> str:
    """Return what the command prints. Any exception but SystemExit is a bug."""
    result = CliRunner().invoke(main, ["trace", *args])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def story(wanted: str, *args: str) -> dict:
    """Return the only story of an id."""
    (found,) = json.loads(trace(wanted, "--json", *args))["stories"]
    return found


def action_of(rig: Rig) -> str:
    """Return the id of the only action."""
    (key,) = rig.client.scan_iter(f"{PREFIX}*:pending:*")
    return key.rpartition(":")[2]


def test_story_of_an_action_goes_from_its_question_to_its_outcome(
    rig: Rig, bot: Bot, tmp_path: Path
):
    """It says who confirmed it with which message, how it ended, and what each turn replied."""
    collect(rig, tmp_path)
    pid = action_of(rig)
    told = story(pid)
    (action,) = told["actions"]
    assert [event["event"] for event in action["events"]] == [
        "armed",
        "shown",
        "claimed",
        "started",
        "done",
    ]
    claimed = action["events"][2]
    assert (claimed["by"], claimed["turn"]) == (digest(YES), f"{CHAT.id}@2")
    asked, decided = told["turns"]
    assert (asked["id"], asked["tools"], asked["asked_actions"]) == (
        f"{CHAT.id}@1",
        ["delete"],
        [pid],
    )
    assert (decided["id"], decided["event"], decided["status"]) == (
        f"{CHAT.id}@2",
        digest(YES),
        "done",
    )
    assert [reply["state"] for each in told["turns"] for reply in each["replies"]] == [
        "sent"
    ] * len(bot.channel.sent)
    (confirmed,) = told["answers"]["confirmed_by"]
    says = rf"The user who was asked confirmed it at .* with message {digest(YES)} \(.*@2\). It is done now."
    assert re.fullmatch(rf"{pid} \(delete\): {says}", confirmed)


def test_every_id_leads_to_the_story(rig: Rig, bot: Bot, tmp_path: Path):
    """The platform's event id, its hash, the turn, the reply, the platform's id of the reply, the action, its audit
    entry.
    """
    collect(rig, tmp_path)
    pid, shard = action_of(rig), re.search(r"\{(\d+)\}", rig.shard)[1]
    receipt = story(f"{CHAT.id}#1")["turns"][0]["replies"][0]["receipt"]
    assert receipt
    ids = [
        ASK,
        digest(ASK),
        f"{CHAT.id}@1",
        f"{CHAT.id}#1",
        receipt,
        pid,
        f"{shard}/1",
        f"shard {shard}, entry 4",
        YES,
    ]
    ids += [digest(YES), CHAT.id]
    for wanted in ids:
        found = json.loads(trace(wanted, "--json"))["stories"]
        assert [each["conversation"] for each in found] == [CHAT.id], wanted
        assert all(
            len(each["turns"]) == 2 and each["actions"][0]["action_id"] == pid for each in found
        ), wanted


def test_nothing_personal_is_printed_unless_asked_for(rig: Rig, bot: Bot, tmp_path: Path):
    """No text, no preview, no user, and no event id of the platform."""
    collect(rig, tmp_path)
    bot.hear("my card is 4111", event="later")
    hidden = trace(ASK) + trace(ASK, "--json") + trace("later") + trace(action_of(rig), "--json")
    assert [each for each in ("INV-42", "delete it", "ana", "4111", YES) if each in hidden] == []
    shown = trace(ASK, "--show-texts")
    assert (
        "preview: Delete INV-42" in shown,
        "told: deleted INV-42" in shown,
        "user: ana" in shown,
    ) == (True,) * 3
    assert "said: my card is 4111" in trace("later", "--show-texts")


def test_story_of_an_action_is_read_from_the_ledger_without_redis(
    rig: Rig, bot: Bot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The command says what it could not search."""
    collect(rig, tmp_path)
    pid = action_of(rig)
    monkeypatch.setenv("REDIS_URL", f"redis://:hush-hush@127.0.0.1:{free_port()}/0")
    for wanted in (pid, YES, digest(YES), "deleted INV-42"):
        printed = trace(wanted)
        assert f"claimed by message {digest(YES)}" in printed, wanted
        assert ("not Redis (ConnectionError)" in printed, "hush" in printed) == (True, False)
    assert "nothing is known about 'update-471'" in trace(ASK)


def test_story_of_a_question_has_the_yes_that_came_too_late(rig: Rig, tmp_path: Path):
    """It confirmed nothing. The user read twice that the question had expired, and the story says why."""
    bot = Bot(rig, "INV-42")
    bot.say("delete it", event=ASK)
    rig.pass_time(3600)
    bot.work()
    bot.say("yes", event=YES)
    collect(rig, tmp_path)
    pid, yes = action_of(rig), f"{CHAT.id}@2"
    for wanted in (YES, pid):
        told = story(wanted)
        assert [turn["id"] for turn in told["turns"]] == [f"{CHAT.id}@1", yes], wanted
        assert told["answers"]["confirmed_by"] == [
            f"{pid} (delete): not confirmed, no answer came in time.",
            f"{yes} answered {pid} and did not decide it: it had ended (expired).",
        ]
        again = f"{yes} came after action {pid} had ended (expired), so its outcome was told again."
        assert again in told["answers"]["said_twice"]


def test_yes_whose_turn_is_forgotten_leads_to_its_action(rig: Rig, bot: Bot, tmp_path: Path):
    """After a week, or after an erasure, Redis no longer has the turn, but the ledger has the action."""
    collect(rig, tmp_path)
    rig.client.delete(f"{rig.shard}:turn_records:{CHAT.id}")
    told = story(YES)
    assert (told["turns"][0]["status"], told["actions"][0]["action_id"]) == (
        "forgotten",
        action_of(rig),
    )
    assert "The user who was asked confirmed it" in told["answers"]["confirmed_by"][0]


def test_tap_of_another_user_confirms_nothing(rig: Rig):
    """The question waits on, and its story has the tap."""
    bot = Bot(rig, "INV-42")
    bot.say("delete it", event=ASK)
    button = bot.channel.sent[-1].reply.buttons[0]
    bot.say("", user="ben", tap=button.data, event=YES)
    pid = action_of(rig)
    assert story(YES)["answers"]["confirmed_by"] == [
        f"{pid} (delete): not confirmed, the question waits for an answer.",
        f"{CHAT.id}@2 answered {pid} and did not decide it: the reply says why.",
    ]


def test_story_of_a_cancelled_action_names_the_message_with_the_no(rig: Rig):
    """Its id and its turn are printed."""
    bot = Bot(rig, "INV-42")
    bot.say("delete it", event=ASK)
    bot.say("no", event=YES)
    (says,) = story(ASK)["answers"]["confirmed_by"]
    assert says.endswith(f"not confirmed, it was cancelled by message {digest(YES)} ({CHAT.id}@2).")


def test_story_of_a_changed_action_names_the_form(rig: Rig):
    """The message with the form ended the earlier action and asked about the new one."""
    bot = Bot(rig, "INV-42", editable=["name"])
    bot.say("delete it", event=ASK)
    form = turn("", event=YES, tap=bot.buttons[2].data)
    rig.accept(replace(form, kind="form", form={"name": "INV-43"}))
    bot.work()
    told = story(YES)
    changed = "its user changed it, and was asked anew by message"
    assert (
        f"{bot.buttons[0].data[1:23]} (delete): not confirmed, the question waits for an answer."
        in _confirmed(told)
    )
    assert any(f"{changed} {digest(YES)} ({CHAT.id}@2)." in each for each in _confirmed(told))


def _confirmed(told: dict) -> list[str]:
    return told["answers"]["confirmed_by"]


def test_yes_in_the_ledger_of_another_machine_is_read_from_redis(rig: Rig, tmp_path: Path):
    """This machine's ledger has only the question. The story does not say that the question waits."""
    bot = Bot(rig, "INV-42")
    bot.say("delete it", event=ASK)
    collect(rig, tmp_path)
    bot.say("yes", event=YES)
    collect(rig, tmp_path / "elsewhere")
    pid = action_of(rig)
    (says,) = story(pid)["answers"]["confirmed_by"]
    known = "the ledger of another machine knows when. It is done now."
    assert says == f"{pid} (delete): confirmed with message {digest(YES)}; {known}"


def test_story_of_a_yes_has_the_offer_to_undo(rig: Rig, tmp_path: Path):
    """It leads to the turn that offers the undo, and to the confirmed action."""
    bot = Bot(rig, "INV-42", undo=lambda **_: "restored")
    bot.say("delete it", event=ASK)
    bot.say("yes", event=YES)
    collect(rig, tmp_path)
    assert len(story(YES)["actions"]) == 2


@pytest.mark.parametrize(
    "wanted", [f"{CHAT.id}#99", f"{CHAT.id}@0", f"{CHAT.id}@99", f"web:{'0' * 20}#1"]
)
def test_mistyped_id_is_unknown_and_not_forgotten(rig: Rig, bot: Bot, wanted: str):
    """For example a reply, a turn or a conversation with a wrong number."""
    assert "nothing is known about" in trace(wanted)


@pytest.mark.parametrize("wanted", ["SM\udcff", f"{CHAT.id}@{'9' * 5000}", f"3/{'9' * 5000}"])
def test_malformed_id_is_refused_in_one_line(rig: Rig, wanted: str):
    """For example bytes that are not UTF-8, and endless numbers."""
    printed = trace(wanted)
    assert printed.splitlines()[-1].startswith("Error: ")
    assert len(printed) < 1500


def test_story_of_an_action_that_is_not_collected_yet_is_read_from_redis(rig: Rig, bot: Bot):
    """This works on a machine without a ledger, too."""
    printed = trace(action_of(rig))
    assert "no audit ledger" in printed
    assert f"claimed by message {digest(YES)} ({CHAT.id}@2)" in printed


def test_ledger_is_not_read_into_memory(
    rig: Rig, bot: Bot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The ledger of a year has millions of entries."""
    collect(rig, tmp_path)
    monkeypatch.delattr(AuditLedger, "entries")
    for wanted in (
        ASK,
        YES,
        digest(YES),
        action_of(rig),
        f"{re.search(r'{([0-9]+)}', rig.shard)[1]}/3",
    ):
        assert story(wanted)["actions"], wanted


def test_unknown_id_says_what_was_searched(rig: Rig):
    """It also says how long records are kept, and what to search for in the log."""
    result = CliRunner().invoke(main, ["trace", "SM404"])
    assert result.exit_code == 3
    assert "nothing is known about 'SM404' (searched: no audit ledger, " in result.output
    assert ("72 hours" in result.output, digest("SM404") in result.output) == (True, True)


def test_repeated_webhook_is_shown_as_recognized(rig: Rig):
    """The person was answered once."""
    bot = Bot(rig, "A")
    for _ in range(3):
        bot.hear("delete A", event=ASK)
    bot.work()
    bot.hear("delete A", event=ASK)
    told = story(ASK)
    assert told["turns"][0]["webhooks"] == 4
    assert told["answers"]["said_twice"] == [
        f"The platform sent {CHAT.id}@1 4 times. Sayso recognized the repetitions and ignored them."
    ]


def test_reply_that_was_sent_twice_is_shown(rig: Rig):
    """The answer of the platform to the first attempt was lost."""
    bot = Bot(rig, lines=["hello"])
    bot.channel.errors = [DeliveryUncertain("no answer")]
    bot.say("hi", event=ASK)
    rig.pass_time(60)
    bot.work()
    (says,) = story(ASK)["answers"]["said_twice"]
    assert says.startswith(f"Reply {CHAT.id}#1 was sent again, marked as repeated.")


def test_attempts_of_a_turn_that_killed_its_worker_are_shown(rig: Rig):
    """Only the replies of the last attempt were sent."""
    bot = Bot(rig, "A")
    bot.hear("delete A", event=ASK)
    rig.mailbox.lease(CHAT.id, "worker1.x")  # it is killed here
    rig.end_lease()
    bot.work()
    (says,) = story(ASK)["answers"]["said_twice"]
    assert says.startswith(f"Workers began {CHAT.id}@1 2 times.")


def test_waiting_turn_shows_what_it_waits_for(rig: Rig):
    """It waits for any worker to start, for the next one, or for the one that holds the lease of its conversation."""
    rig.accept(turn("one", event=ASK))
    rig.accept(turn("two", event=YES))
    assert story(YES)["answers"]["not_answered"] == [
        f"{CHAT.id}@2 waits behind 1 message. No worker is alive: start one with `sayso worker`."
    ]
    Heartbeat(rig.client, "worker1", prefix=PREFIX).beat()
    assert story(ASK)["answers"]["not_answered"] == [
        f"{CHAT.id}@1 is next in its conversation. A worker will take it."
    ]
    rig.mailbox.lease(CHAT.id, "worker1.x")
    (says,) = story(ASK)["answers"]["not_answered"]
    attempt = "Its attempt 1 has begun. Worker worker1 works on this conversation now."
    assert says == f"{CHAT.id}@1 is next in its conversation. {attempt}"


def test_separate_queue_that_is_suspended_or_away_is_named(
    rig: Rig, redis_url: str, monkeypatch: pytest.MonkeyPatch
):
    """With QUEUE_URL, the server of the conversations says nothing about the queue."""
    rig.accept(turn("one", event=ASK))
    Heartbeat(rig.client, "worker1", prefix=PREFIX).beat()
    queue_url = f"{redis_url}?db=1"
    with connect(queue_url) as queue:
        suspend(queue)
    monkeypatch.setenv("QUEUE_URL", queue_url)
    (says,) = story(ASK)["answers"]["not_answered"]
    assert says.endswith("The queue is suspended: run `rq resume`.")

    monkeypatch.setenv("QUEUE_URL", "redis://127.0.0.1:1")
    (says,) = story(ASK)["answers"]["not_answered"]
    assert "The Redis of QUEUE_URL cannot be used (ConnectionError)" in says


def test_killed_worker_is_not_said_to_work(rig: Rig):
    """It holds its lease for some seconds more, and sends no heartbeats."""
    rig.accept(turn("one", event=ASK))
    rig.mailbox.lease(CHAT.id, "worker1.x")
    ended = f"{CHAT.id}@1 is next in its conversation. Its attempt 1 has begun. Worker worker1 ended in the middle of this"
    (says,) = story(ASK)["answers"]["not_answered"]
    assert says == f"{ended} conversation. No worker is alive: start one with `sayso worker`."
    Heartbeat(rig.client, "worker2", prefix=PREFIX).beat()
    (says,) = story(ASK)["answers"]["not_answered"]
    assert re.fullmatch(
        rf"{re.escape(ended)} conversation\. Another worker takes it up within (9|1[01]) s\.", says
    )


def test_keys_hold_no_id_of_a_platform(rig: Rig):
    """They are listed by SCAN, in backups and in what operators copy into reports."""
    rig.accept(turn("one", event=ASK))
    assert not [key for key in rig.client.scan_iter("*") if ASK in key]
    assert story(ASK)["turns"][0]["event"] == digest(ASK)


def test_journal_of_the_turn_in_progress_is_shown(rig: Rig):
    """It has the names of the tool calls that began and returned."""
    lease, _ = (rig.accept(turn("one", event=ASK)), rig.mailbox.lease(CHAT.id, "worker1.x"))[1]
    call = {"tool_name": "look", "parameters": {"card": "4111"}, "id": "c1"}
    steps = [
        {"seq": 1, "upto": 1},
        {"answer": {"role": "assistant", "tool_calls": [call]}, "usage": {}},
    ]
    steps += [{"started": [0]}, {"call": 0, "content": "4111"}]
    rig.journals.append_entries(lease, 1, 0, [json.dumps(step) for step in steps])
    printed = trace(ASK)
    assert "  the model asked for look\n  look began\n  look returned\n" in printed
    assert "4111" not in printed


@pytest.mark.parametrize(
    ("error", "says"),
    [(SendError("blocked"), "was given up: SendError: blocked"), (None, "An unexpected error")],
)
def test_message_without_an_answer_has_a_reason(rig: Rig, error: Exception | None, says: str):
    """Here the platform refused the reply, or the agent failed."""

    def answer(_: str) -> str:
        if error is None:
            raise ZeroDivisionError
        return "hello"

    bot = Bot(rig)
    bot.processor.turns.agents["chat"] = FakeAgent(answer)
    bot.channel.errors = [error] if error else []
    bot.say("hi", event=ASK)
    assert any(says in each for each in story(ASK)["answers"]["not_answered"])


def test_reply_without_a_stored_turn_is_shown(rig: Rig, bot: Bot):
    """Redis keeps replies for longer than turns."""
    rig.client.delete(f"{rig.shard}:turn_records:{CHAT.id}")
    assert story(f"{CHAT.id}#1")["replies"][0]["state"] == "sent"
    assert f"{CHAT.id}@1: it is no longer stored how it was answered" in trace(f"{CHAT.id}@1")


def test_record_of_another_version_is_left_out(rig: Rig, bot: Bot):
    """A record is read as a whole or not at all."""
    rig.client.hset(f"{rig.shard}:turn_records:{CHAT.id}", "1", '{"v":2,"sequence":1}')
    assert story(f"{CHAT.id}@1")["turns"][0]["status"] == "forgotten"


@pytest.mark.parametrize(
    "planted", ["", "no json", "[1]", "{}", '{"answer": 5}', '{"started": [7]}']
)
def test_forged_values_in_redis_do_not_break_the_command(rig: Rig, planted: str):
    """A person with access to Redis may have written any value."""
    rig.accept(turn("one", event=ASK))
    lease, _ = rig.mailbox.lease(CHAT.id, "worker1.x")
    rig.journals.append_entries(lease, 1, 0, ['{"seq": 1, "upto": 1}', planted])
    rig.client.hset(f"{rig.shard}:turn_records:{CHAT.id}", "1", planted)
    rig.client.hset(
        f"{rig.shard}:pending:{'0' * 22}", mapping={"record": planted, "state": "shown"}
    )
    assert "is next in its conversation" in trace(ASK)
    trace("0" * 22)


def test_conversation_keeps_the_last_turns_only(rig: Rig):
    """The number of stored turns is bounded, also when webhooks are repeated."""
    bot = Bot(rig)
    bot.processor.turns.agents["chat"] = FakeAgent()
    for number in range(55):
        for _ in range(2):
            bot.hear("hi", event=f"e{number}")
        bot.work()
        rig.client.delete(*rig.client.keys(f"{rig.shard}:rate_limit:*"))
    key = f"{rig.shard}:turn_records:{CHAT.id}"
    assert rig.client.hlen(key) == 100
    assert 0 < rig.client.pttl(key) <= 7 * 24 * 3600 * 1000
    assert story("e54")["turns"][0]["webhooks"] == 2
    assert story("e1")["turns"][0]["status"] == "forgotten"


@pytest.fixture
def continuing(rig: Rig) -> Bot:
    """Return a bot whose agent goes on after a decision. It was told to delete INV-42, and asked."""
    bot = Bot(rig, "INV-42", lines=["Anything else?"])
    bot.agent = ChannelAgent(
        bot.agent.agent,
        rig.store,
        journals=rig.journals,
        behavior=ChannelBehavior(after="continue"),
    )
    bot.processor.turns.agents["chat"] = bot.agent
    bot.say("please delete it", event=ASK)
    return bot


@pytest.mark.parametrize("wanted", ["the message", "the yes", "the continuation", "its event"])
def test_story_has_the_turn_in_which_the_agent_went_on(rig: Rig, continuing: Bot, wanted: str):
    """It stands under the message that asked and the yes that decided, whichever of the three is traced."""
    continuing.say("yes", event=YES)
    pid = action_of(rig)
    ids = {
        "the message": ASK,
        "the yes": YES,
        "the continuation": f"{CHAT.id}@3",
        "its event": f"after:{pid}",
    }
    told = story(ids[wanted])
    assert [each["id"] for each in told["turns"]] == [f"{CHAT.id}@{seq}" for seq in (1, 2, 3)]
    last = told["turns"][-1]
    assert (last["continues"], last["event"], len(last["replies"])) == (
        pid,
        digest(f"after:{pid}"),
        1,
    )
    assert not any(
        "told again" in each or "did not decide" in each for each in told["answers"]["confirmed_by"]
    )
    assert f"no message: the agent goes on after action {pid}" in trace(ids[wanted])


def test_yes_whose_outcome_is_in_the_next_message_was_answered():
    """Where each message costs money, the turn in which the agent goes on tells the outcome."""
    decided = TracedTurn("wa:1@2", "done", decided_action="a1")
    reply = TracedReply("wa:1#2", "sent", receipt="SM2")
    went_on = TracedTurn("wa:1@3", "done", continues="a1", replies=(reply,))
    story = MessageStory("wa:1", (decided, went_on))
    assert answers(story)["not_answered"] == [
        "wa:1@2 was answered in wa:1@3, in which the agent went on."
    ]
    unanswered = replace(story, turns=(decided, replace(went_on, replies=())))
    assert answers(unanswered)["not_answered"] == [
        "wa:1@2 was finished without a reply.",
        "wa:1@3 was finished without a reply.",
    ]


def test_continuation_that_waits_is_shown_under_its_message(rig: Rig, continuing: Bot):
    """Another worker will take it: an operator sees that the rest is still to come."""
    continuing.hear("yes", event=YES)
    go_on = continuing.agent._continuations.go_on

    async def killed(_: object) -> None:
        raise RedisError("killed")

    continuing.agent._continuations.go_on = killed
    with pytest.raises(RedisError):
        continuing.work()
    waiting = story(ASK)["turns"][-1]
    assert (waiting["status"], waiting["continues"]) == ("waits", action_of(rig))
    continuing.agent._continuations.go_on = go_on


def test_continuation_without_a_rest_says_why(rig: Rig, continuing: Bot):
    """A message that the model answered between the yes and it was the rest."""
    continuing.hear("yes", event=YES)
    continuing.hear("and what else is there?")
    continuing.work()
    says = story(YES)["answers"]["not_answered"]
    assert any("nothing was left to go on with" in sentence for sentence in says)
