"""Journal: a turn whose worker is killed resumes where it stopped; no call is repeated or paid twice unreported."""

from __future__ import annotations

import asyncio
import json

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from sayso.agent import tool
from sayso.agent.run.unknown_outcomes import UNKNOWN_OUTCOME
from sayso.infra.concurrency import run_without_loop
from sayso.pending import stash_pending
from sayso.pending.executors import PendingConfirmation
from sayso.workers.turn_processor import MAX_TURN_ATTEMPTS
from tests.contracts.rigs import CHAT, ENGLISH, Rig
from tests.workers.story import LINES, Story, call, playing

#: The text a user receives about a turn that was given up.
INTERRUPTED = ENGLISH.interrupted_before()
#: The text a user receives about a call with an unknown outcome.
UNKNOWN = "I was interrupted while doing this: {}\nI cannot tell whether it finished"


@pytest.fixture
def make_story():
    """Return a function that makes a story."""
    return lambda *lines, **config: Story(Rig(), list(lines) or None, **config)


def test_interrupted_tool_is_not_repeated_and_is_reported(make_story):
    """A tool whose worker was killed halfway has an unknown outcome; the model and the user are both informed."""
    story = make_story()
    told = story.killed_at("during post b")
    assert (story.begun["b"], story.ended["b"]) == (1, 0)
    assert told.startswith(UNKNOWN.format("post"))
    assert told.endswith("all done")
    assert story.model.seen[-1] == ["look a ok", UNKNOWN_OUTCOME, "charge c ok", "post d ok"]


def test_tool_that_finished_unrecorded_has_an_unknown_outcome(make_story):
    """The effect took place, and the worker was killed before it recorded the result."""
    story = make_story((call("post", what="b"),), "all done")
    assert story.killed_at("after post b").startswith(UNKNOWN.format("post"))
    assert (story.begun["b"], story.ended["b"]) == (1, 1)


def test_model_that_repeats_an_unclear_call_is_refused(make_story):
    """A call with an unknown outcome cannot be repeated in the same turn, although the model tries."""
    story = make_story(
        (call("post", what="b"),), (call("post", what="b"), call("post", what="c")), "all done"
    )
    story.killed_at("during post b")
    assert (story.begun["b"], story.begun["c"]) == (1, 1)
    assert story.model.seen[-1] == [UNKNOWN_OUTCOME, UNKNOWN_OUTCOME, "post c ok"]


def test_duplicate_of_an_unclear_call_in_one_answer_is_refused(make_story):
    """The model requests the same call twice in one answer; the second must not repeat the interrupted first."""
    twice = (call("post", what="b"), call("post", what="b"))
    story = make_story(twice, "all done", parallel_tool_execution=False)
    story.killed_at("during post b")
    assert (story.begun["b"], story.model.seen[-1]) == (1, [UNKNOWN_OUTCOME, UNKNOWN_OUTCOME])


def test_unclear_call_asks_first_in_a_later_turn(make_story):
    """The user was told that nothing repeats it, so only a yes of the user does."""
    story = make_story((call("post", what="b"),), "all done")
    story.killed_at("during post b")
    story.hear("do it again")
    assert ("This may already have happened at " in story.work_on(), story.begun["b"]) == (True, 1)
    story.hear("yes")
    story.work_on()
    assert story.begun["b"] == 2


def test_interrupted_idempotent_tool_runs_again_with_the_same_key(make_story):
    """No other call ever receives this idempotency key."""
    story = make_story(parallel_tool_execution=False)
    assert story.killed_at("during charge c") == "all done"
    first, second = story.keys["c"]
    assert first == second != ""
    assert len({key for keys in story.keys.values() for key in keys}) == len(story.keys)


def test_interrupted_read_only_tool_runs_again(make_story):
    """A read-only tool changes nothing, so repeating it is safe."""
    story = make_story((call("look", what="a"),), "all done")
    assert story.killed_at("during look a") == "all done"
    assert story.begun["a"] == 2


def test_recorded_model_answer_is_not_requested_again(make_story):
    """The worker is killed after the answer is recorded and before any of its tools starts."""
    story = make_story((call("look", what="a"),), "all done")
    assert story.killed_at("after append_entries") == "all done"
    assert dict(story.model.asked) == {0: 1, 1: 1}


def test_finished_calls_are_not_repeated(make_story):
    """The worker is killed after the last result and before the commit: only the final answer is requested again."""
    story = make_story()
    assert story.killed_at("before commit") == "all done"
    assert set(story.begun.values()) == {1}
    assert dict(story.model.asked) == {0: 1, 1: 1, 2: 2}


def test_turn_survives_two_killed_workers(make_story):
    """One worker is killed in the first round of the turn, and its successor in the second."""
    story = make_story()
    told = story.killed_at("during post b", "during post d")
    assert told.count(UNKNOWN.format("post")) == 2
    assert (story.begun["b"], story.begun["d"]) == (1, 1)
    assert story.model.asked[0] == story.model.asked[1] == 1


def test_call_that_had_not_started_runs_after_the_crash(make_story):
    """Calls run one after the other, and the second had not started when the first was interrupted."""
    story = make_story(
        (call("post", what="b"), call("post", what="d")), "all done", parallel_tool_execution=False
    )
    story.killed_at("during post b")
    assert (story.begun["b"], story.begun["d"]) == (1, 1)
    assert story.model.seen[-1] == [UNKNOWN_OUTCOME, "post d ok"]


def test_kill_between_two_calls_repeats_neither(make_story):
    """The first call's result is written together with the start of the second."""
    story = make_story(
        (call("post", what="b"), call("post", what="d")), "all done", parallel_tool_execution=False
    )
    story.killed_at("before post d")
    assert story.model.seen[-1] == ["post b ok", UNKNOWN_OUTCOME]
    assert (story.begun["b"], story.begun["d"]) == (1, 0)


def test_tool_does_not_run_after_the_lease_is_lost(make_story):
    """A worker that was paused too long during the model call leaves the tools to the new lease holder."""
    story = make_story((call("post", what="b"),), "all done")
    thief = []
    complete = story.model.acomplete

    async def steal(**request):
        answer = await complete(**request)
        if not thief:
            story.rig.end_lease()
            thief.append(run_without_loop(story.rig.mailbox.lease(CHAT.id, "thief")))
        return answer

    story.model.acomplete = steal
    story.hear()
    assert story.work()
    assert (story.begun["b"], story.channel.texts) == (0, [])
    story.rig.end_lease()
    assert (story.work_on(), story.begun["b"]) == ("all done", 1)


def test_lease_lost_in_one_of_several_calls_cancels_the_others(make_story):
    """The other calls are cancelled, because another worker now holds the conversation."""
    story = make_story((call("post", what="b"), call("wait")), "all done")
    stopped = []

    @tool
    async def wait() -> str:
        """Wait."""
        try:
            await asyncio.sleep(60)
        finally:
            stopped.append(True)

    @tool
    async def post(what: str) -> str:
        """Post, and lose the lease."""
        story.rig.end_lease()
        run_without_loop(story.rig.mailbox.lease(CHAT.id, "thief"))
        return what

    async def stopped_by_then() -> list[bool]:
        await story.worker().run(CHAT.id)
        return list(stopped)

    story.tools = [wait, post]
    story.hear()
    assert (asyncio.run(stopped_by_then()), story.channel.texts) == ([True], [])


def test_tool_does_not_run_when_its_start_cannot_be_recorded(make_story):
    """Redis is away: the turn is left for a later attempt, and the user receives no message."""
    story = make_story((call("post", what="b"),), "all done")
    journal = story.rig.journals.append_entries
    story.rig.journals.append_entries = lambda *_: (_ for _ in ()).throw(
        RedisConnectionError("away")
    )
    story.hear()
    with pytest.raises(RedisConnectionError):
        story.work()
    assert story.begun["b"] == 0
    story.rig.journals.append_entries = journal
    story.rig.end_lease()
    assert (story.work_on(), story.begun["b"]) == ("all done", 1)


def test_repeated_journal_write_changes_nothing(make_story):
    """Every write is made twice; the journal has no entry twice, and none is missing."""
    story = make_story()
    journal = story.rig.journals.append_entries

    async def twice(*args) -> None:
        await journal(*args)
        await journal(*args)

    story.rig.journals.append_entries = twice
    assert story.killed_at("during post d").startswith(UNKNOWN.format("post"))
    assert story.model.seen[-1] == ["look a ok", "post b ok", "charge c ok", UNKNOWN_OUTCOME]


def test_turn_without_tools_writes_no_journal(make_story):
    """A turn without tools costs no extra round trip to the store."""
    story = make_story("all done")
    story.hear()
    story.work()
    assert "before append_entries" not in story.life.steps


def test_round_of_one_call_costs_two_writes(make_story):
    """One write holds the answer and the start of its call, the other the result."""
    story = make_story((call("post", what="b"),), "all done")
    story.hear()
    story.work()
    assert story.life.steps.count("before append_entries") == 2


def test_sequential_calls_cost_one_write_each_plus_one(make_story):
    """A result is written together with the start of the next call."""
    calls = tuple(call("post", what=what) for what in "abc")
    story = make_story(calls, "all done", parallel_tool_execution=False)
    story.hear()
    story.work()
    assert story.life.steps.count("before append_entries") == 4


def test_next_turn_ignores_the_journal_of_the_last_one(make_story):
    """The user repeats the message: the model is asked again, and its tools run again."""
    story = make_story(parallel_tool_execution=False)
    story.killed_at("during charge c")
    story.hear()
    assert story.work_on() == "all done"
    assert story.model.asked[0] == 2
    assert (story.begun["b"], len(set(story.keys["b"]))) == (2, 2)


def test_file_of_a_finished_call_is_delivered_after_the_crash(make_story):
    """The file was stored once in the media store when the call ended."""
    story = make_story((call("draw", what="cat"),), "all done")
    story.killed_at("before commit")
    (picture,) = [delivery.reply.media for delivery in story.channel.sent if delivery.reply.media]
    assert (story.shelf.files, picture.ref, picture.filename) == ({"f0": b"cat"}, "f0", "cat.png")


def test_proposal_survives_a_killed_worker(make_story):
    """The worker is killed before the commit: the question is about the same action, and one yes runs it once."""
    story = make_story((call("delete", what="x"),))
    story.hear()
    story.life.names = {"before commit"}
    assert not story.work()
    (proposed,) = [each for entry in story.journal() for each in entry.get("proposals", ())]
    assert story.work_on().startswith("Delete x")
    button = story.channel.sent[-1].reply.buttons[0]
    assert button.data[1:23] == proposed["action"]["pending_action_id"]
    story.hear("yes")
    assert (story.work_on(), story.begun["x"]) == ("delete x ok", 1)
    assert story.model.asked[0] == 1


def test_plan_keeps_its_order_across_crashes(make_story):
    """A worker with three proposals is killed at each step before the commit."""
    names = "xyz"
    story = make_story(tuple(call("delete", what=what) for what in names))
    story.hear()
    for number in (2, 4, 6, 8):
        story.life.deaths = {len(story.life.steps) + number}
        story.work()
    question = story.work_on()
    assert [question.index(f"Delete {what}") for what in names] == sorted(
        question.index(f"Delete {what}") for what in names
    )
    story.hear("yes")
    story.work_on()
    assert [story.begun[what] for what in names] == [1, 1, 1]


def test_proposal_of_a_tool_survives_without_its_closure(make_story):
    """The closure is lost with its process; the executor factory of the action's kind performs it."""
    ran = []

    @tool
    def pay() -> PendingConfirmation:
        """Pay."""
        stash_pending(
            kind="payment",
            preview="Pay 5",
            args={"cents": 500},
            executor=lambda: ran.append("closure"),
        )
        return PendingConfirmation(action="payment", preview="Pay 5")

    story = make_story((call("pay"),))
    story.tools.append(pay)
    story.rig.store.register_executor_factory(
        "payment", lambda action: lambda: ran.append(action.args["cents"])
    )
    story.hear()
    story.life.names = {"before commit"}
    assert not story.work()
    story.rig.store.executors._closures.clear()
    assert story.work_on().startswith("Pay 5")
    story.hear("yes")
    story.work_on()
    assert ran == [500]


def test_terminal_tool_ends_the_run_after_a_crash_too(make_story):
    """The result of a terminal tool is the answer, and the model is not asked to rephrase it."""
    story = make_story((call("show", what="x"),), "never said")
    assert story.killed_at("before commit") == "show x ok"
    assert (story.begun["x"], dict(story.model.asked)) == (1, {0: 1})


def test_long_result_is_the_same_before_and_after_the_crash(make_story, monkeypatch):
    """The result is cut in the same place before and after the crash."""
    monkeypatch.setattr("sayso.agent.channel.turn_journal.MAX_FULL_CHARS", 30)
    story = make_story((call("look", what="a" * 39),), "all done")
    story.killed_at("after model 1")
    (before, after) = story.model.seen[1:]
    assert before == after
    assert "characters from here on are not kept, of 47 that the tool gave" in before[0]


def test_full_journal_ends_the_run_with_a_message(make_story, monkeypatch):
    """No tool starts that could not be recorded."""
    monkeypatch.setattr("sayso.agent.channel.turn_journal.MAX_JOURNAL_CHARS", 500)
    story = make_story()
    story.hear()
    assert story.work_on() == ENGLISH.too_many_steps()
    assert set(story.begun) == {"a", "b"}


@pytest.mark.parametrize(
    "garbage",
    [
        "",
        "junk",
        "[]",
        "{}",
        "null",
        '{"started": [7]}',
        '{"call": -1}',
        '{"call": 0, "ends": "x"}',
        '{"answer": 1}',
    ],
)
@pytest.mark.parametrize("at", [0, 1, -1])
def test_unreadable_journal_ends_the_turn_with_a_message(garbage, at):
    """The record of the work is lost, so no call is repeated, and the next turn is answered normally."""
    story = Story(Rig())
    story.hear()
    story.life.names = {"after post b"}
    assert not story.work()
    story.rig.write_journal(at, garbage)
    assert story.work_on() == INTERRUPTED
    assert story.begun == {"a": 1, "b": 1}
    story.hear()
    assert story.work_on() == "all done"


def proposal_changed(**fields) -> Story:
    """Return a story whose worker was killed and whose recorded proposal was then changed."""
    story = Story(Rig(), [(call("delete", what="x"),), "all done"])
    story.hear()
    story.life.names = {"before commit"}
    story.work()
    entry = json.loads(story.rig.journal()[-1])
    entry["proposals"][0]["action"].update(fields)
    story.rig.write_journal(-1, json.dumps(entry))
    return story


@pytest.mark.parametrize(
    "fields", [{"args": {"what": "y"}}, {"preview": "x" * 20_000}, {"kind": "sayso:plan"}, {"x": 1}]
)
def test_proposal_changed_in_the_journal_is_refused(fields):
    """The changed arguments do not match the digest, or the proposal cannot be shown to a user."""
    assert proposal_changed(**fields).work_on() == INTERRUPTED


def test_proposal_is_offered_only_to_the_user_of_its_turn():
    """A user id that was changed in the journal has no effect."""
    story = proposal_changed(user_id="mallory")
    assert story.work_on().startswith("Delete x")
    story.hear("yes", user="mallory")
    story.work()
    assert story.begun["x"] == 0
    story.model.lines = ["all done"]
    story.hear("yes")
    assert (story.work_on()[:40], story.begun["x"]) == (
        "I have said something else since I asked",
        0,
    )
    story.hear("yes")
    assert (story.work_on(), story.begun["x"]) == ("delete x ok", 1)


def test_turn_that_kills_each_worker_is_given_up_with_a_message(make_story):
    """The turn is abandoned after a fixed number of attempts."""
    story = make_story((call("look", what="a"),), "all done")
    told = story.killed_at(*["during look a"] * MAX_TURN_ATTEMPTS)
    assert (told, story.begun["a"]) == (INTERRUPTED, MAX_TURN_ATTEMPTS)
    story.hear()
    assert story.work_on() == "all done"


def test_call_in_a_turn_that_is_given_up_is_reported(make_story):
    """A call that started and has no result may have had its effect."""
    story = make_story(
        (call("post", what="b"), call("look", what="a")), "all done", parallel_tool_execution=False
    )
    told = story.killed_at("during post b", *["during look a"] * (MAX_TURN_ATTEMPTS - 1))
    assert told == f"{ENGLISH.unknown('post')}\n\n{INTERRUPTED}"


@tool
async def hang(what: str) -> str:
    """Start, and never return."""
    story = playing.get()
    if what == "stop":
        story.hear("/stop")
        story.processor.renew_now(CHAT.id)
    else:  # the timeout has passed
        story.processor._held_leases[CHAT.id]._stoppable[1].reschedule(0)
    return await asyncio.Event().wait()


def ended_early(story: Story, what: str) -> list[str]:
    """Return the texts that arrive from a turn that ends while one of its calls runs and another has finished."""
    story.tools.append(hang)
    story.model.lines = [(call("post", what="b"), call("hang", what=what)), "never said"]
    story.processor = story.worker()
    story.hear()
    playing.set(story)
    asyncio.run(story.processor.run(CHAT.id))
    return story.channel.texts


def test_stop_names_the_call_with_an_unknown_outcome(make_story):
    """The stop is confirmed as well; a call that had finished is not named."""
    story = make_story(parallel_tool_execution=False)
    assert ended_early(story, "stop") == [ENGLISH.unknown("hang"), ENGLISH.stopped()]


def test_timeout_names_the_call_with_an_unknown_outcome(make_story):
    """The call is named before the text that the turn took too long."""
    story = make_story(parallel_tool_execution=False)
    assert ended_early(story, "timeout") == [f"{ENGLISH.unknown('hang')}\n\n{ENGLISH.too_long()}"]


def test_turn_that_is_given_up_disarms_the_open_question(make_story):
    """The seed's rule that unrelated turns disarm also holds for a turn that kills each worker."""
    story = make_story((call("delete", what="x"),))
    story.hear("delete x")
    story.work_on()
    story.model.lines = [(call("look", what="a"),), "all done"]
    told = story.killed_at(*["during look a"] * MAX_TURN_ATTEMPTS)
    assert told.startswith("You did not say yes, so nothing was done: “Delete x”")
    assert told.endswith(INTERRUPTED)


def test_interrupted_burst_is_not_joined_by_a_later_message(make_story):
    """Two messages were answered as one; the third came after the crash and is a turn of its own."""
    story = make_story(parallel_tool_execution=False)
    story.hear("one")
    story.hear("two")
    story.life.names = {"during charge c"}
    assert not story.work()
    story.hear("three")
    assert (story.work_on(), story.model.asked[0]) == ("all done", 2)
    assert story.begun["a"] == story.begun["b"] == 2
    assert story.model.users[0] == story.model.users[1] == "one\ntwo"
    assert story.model.users[-1] == "three"


def test_burst_that_killed_its_worker_is_split(make_story):
    """Messages that were batched before any call started are processed one by one after the crash."""
    story = make_story("all done")
    story.hear("one")
    story.hear("two")
    story.life.names = {"after model 0"}
    assert not story.work()
    story.work_on()
    assert story.model.users == ["one\ntwo", "one", "two"]


def test_usage_of_all_attempts_is_counted(make_story):
    """The bill includes the model calls of an earlier worker."""
    story, results = make_story(), []
    worker = story.worker

    def watched():
        processor = worker()
        arun = processor.turns.agents["chat"].agent.arun

        async def watch(*args, **options):
            results.append(await arun(*args, **options))
            return results[-1]

        processor.turns.agents["chat"].agent.arun = watch
        return processor

    story.worker = watched
    story.killed_at("during post d")
    (result,) = results
    assert (result.usage.prompt_tokens, result.iterations, len(result.tool_calls)) == (30, 3, 4)


def test_selector_is_not_called_again_for_recorded_rounds(make_story):
    """A selector may cost a model call; a call of a tool that it did not choose is refused as before."""
    asked = []

    class Selector:
        async def select(self, messages, tools):
            asked.append(len(messages))
            return [tool for tool in tools if tool.name == "look"]

    story = make_story((call("look", what="a"), call("post", what="b")), "all done")
    worker = story.worker

    def choosy():
        processor = worker()
        processor.turns.agents["chat"].agent.selector = Selector()
        return processor

    story.worker = choosy
    story.killed_at("during look a")
    assert (asked, story.begun["b"]) == ([1, 4], 0)


class Books:
    """Record what was certain when each worker was killed, and check it after the turn."""

    def __init__(self, story: Story) -> None:
        self.story, self.answers, self.results, self.marks = story, 0, set(), set()
        self.asked, self.begun = {}, {}

    def close(self) -> None:
        """Note what the journal holds when a worker is killed; none of it may be repeated."""
        entries = self.story.journal()
        calls = [
            call["parameters"]["what"]
            for entry in entries
            for call in entry.get("answer", {}).get("tool_calls", ())
        ]
        rounds = [at for at, entry in enumerate(entries) if "answer" in entry]
        for at, entry in enumerate(entries):
            first = 2 * (sum(number <= at for number in rounds) - 1)
            self.results |= {calls[first + entry["call"]]} if "call" in entry else set()
            self.marks |= {calls[first + index] for index in entry.get("started", ())}
        self.answers = max(self.answers, len(rounds))
        self.asked.update({at: self.story.model.asked[at] for at in range(len(rounds))})
        self.begun.update({what: self.story.begun[what] for what in self.results})

    def audit(self, deaths: int) -> None:
        """Check the counts after the turn was answered."""
        story, last = self.story, self.story.channel.texts[-1]
        assert last.endswith("all done")
        assert {at: story.model.asked[at] for at in self.asked} == self.asked, (
            "an answer that was kept is paid once"
        )
        assert {what: story.begun[what] for what in self.begun} == self.begun, (
            "a finished tool is not repeated"
        )
        assert all(count <= 1 + deaths for count in story.model.asked.values())
        assert story.begun["b"] <= 1 >= story.begun["d"], "what must not be repeated is not"
        unclear = {what for what in self.marks - self.results if what in "bd"}
        assert last.count(UNKNOWN.format("post")) == len(unclear), (
            "what is unclear is told, and nothing else"
        )
        assert all(story.ended[what] >= 1 for what in "abcd" if what not in unclear), (
            "all else was done"
        )
        assert all(len(set(keys)) == 1 for keys in story.keys.values()), "a call has one key"


def lived(rig, deaths: set[int], **config) -> bool:
    """Run the whole story with these kills and audit it. Return False when the story ended before the last kill."""
    story = Story(rig, LINES, **config)
    story.life.deaths = deaths
    books = Books(story)
    story.hear()
    killed = 0
    while not story.work():
        killed += 1
        books.close()
    books.audit(killed)
    return killed == len(deaths)


@pytest.mark.parametrize("parallel", [True, False], ids=["at once", "one by one"])
def test_killed_at_every_step(parallel):
    """A worker is killed before and after each call of a store, the model and a tool, and during each tool."""
    step = 1
    while lived(Rig(), {step}, parallel_tool_execution=parallel):
        step += 1
    assert step > 35


def test_killed_at_every_two_steps():
    """The second worker is killed too, at every step of its own."""
    ended = 0
    for first in range(1, 39):
        for second in range(first + 1 + first % 4, first + 40, 4):
            ended += lived(Rig(), {first, second})
    assert ended > 150
