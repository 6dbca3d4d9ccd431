"""Pending stores: the promises of every store, dangerous paths first."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest
from redis.connection import AbstractConnection

from sayso.channels.types import Conversation, Scope
from sayso.pending import (
    InMemoryPendingStore,
    PendingActionExistsError,
    RedisPendingStore,
    compute_args_digest,
    idempotency_key,
)
from sayso.pending.action import ActionSigner, PendingAction
from sayso.pending.decision_record import DecisionRecord
from sayso.pending.repository import ActionDecision
from sayso.pending.sharded_scripts import ShardedScripts, shard_of
from sayso.pending.turn_changes import Transition, TurnChange
from tests.contracts.rigs import Blocking, client_of, time_passes

PLACE = Conversation("direct", "ana").id
SHARD = f"sayso:{{{shard_of(PLACE)}}}"


class Effects(list):
    """A callable effect that notes each of its runs."""

    def __call__(self) -> str:
        """Run the effect."""
        self.append("ran")
        return "deleted"


@pytest.fixture
def ran():
    """Return the effects so far."""
    return Effects()


def stash(store, executor, **fields):
    """Store an action of ana's."""
    given = {"kind": "delete", "preview": "Delete it", "args": {"id": 42}, **fields}
    return store.stash("ana", executor=executor, **given)


def close_window(store, action: PendingAction) -> None:
    """Close the window of the action long ago."""
    if isinstance(store, InMemoryPendingStore):
        store.repository._entries[action.pending_action_id].update(expires_at=1.0)
    else:
        tamper(store, action, expires_at=1000)


def tamper(store: RedisPendingStore, action: PendingAction, **fields) -> None:
    """Write to the record directly in Redis."""
    client_of(store).hset(f"{SHARD}:pending:{action.pending_action_id}", mapping=fields)


def test_late_yes_executes_nothing(store, ran):
    """After the window the yes is answered `expired`, and nothing runs."""
    close_window(store, stash(store, ran))
    assert store.pop_if_confirmed("ana", "yes").status == "expired"
    assert (ran, store.get("ana")) == ([], None)


def test_second_yes_executes_nothing(store, ran):
    """A confirmed action cannot be confirmed again."""
    stash(store, ran)
    assert store.pop_if_confirmed("ana", "yes").executed
    assert store.pop_if_confirmed("ana", "yes") is None
    assert store.pop_if_intent("ana", "confirm") is None
    assert ran == ["ran"]


@pytest.mark.parametrize(
    "place", [{}, {"channel_id": "chat"}, {"channel_id": "chat", "conversation_id": "other"}]
)
def test_yes_of_another_user_or_conversation_executes_nothing(store, ran, place):
    """A scope is user, channel and conversation. In another scope no action waits; here it still does."""
    here = {"channel_id": "chat", "conversation_id": "room"}
    stash(store, ran, **here)
    assert store.pop_if_confirmed("bob", "yes", **here) is None
    assert store.pop_if_confirmed("ana", "yes", **place) is None
    assert (ran, store.get("ana", **here).status) == ([], "pending")


def test_changed_digest_executes_nothing(store, ran):
    """The caller saw other arguments than the recorded ones, so the action ends."""
    stash(store, ran)
    assert store.pop_if_confirmed("ana", "yes", args_digest="0" * 64).status == "digest_mismatch"
    assert (ran, store.get("ana")) == ([], None)


@pytest.mark.parametrize(
    "words", ["ok", "what is the weather?", "yes delete the other one instead", "no", ""]
)
def test_message_that_is_no_yes_executes_nothing(store, ran, words):
    """The method does not settle it, and the action stays open."""
    stash(store, ran)
    assert store.pop_if_confirmed("ana", words) is None
    assert (ran, store.get("ana").status) == ([], "pending")


def test_late_button_executes_nothing(store, ran):
    """This holds for a tap with any decision."""
    close_window(store, stash(store, ran))
    assert store.pop_if_intent("ana", "confirm").status == "expired"
    assert store.pop_if_intent("ana", "confirm") is None
    assert ran == []


def test_two_threads_that_confirm_at_once_have_one_effect(store, ran):
    """The winner executes; all others get nothing."""
    stash(store, ran)
    start, outcomes = threading.Barrier(8), []

    def confirm():
        start.wait()
        outcomes.append(store.pop_if_confirmed("ana", "yes"))

    threads = [threading.Thread(target=confirm) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ran == ["ran"]
    assert [outcome.status for outcome in outcomes if outcome] == ["executed"]


def test_matching_digest_executes(store, ran):
    """A digest that equals the record's lets the action run."""
    action = stash(store, ran)
    assert store.pop_if_confirmed("ana", "yes", args_digest=action.args_digest).result == "deleted"


def test_yes_for_another_action_executes_nothing_and_preserves_what_waits(store, ran):
    """A yes with another id is stale: it neither runs nor ends the open action."""
    stash(store, ran)
    assert store.pop_if_confirmed("ana", "yes", expected_id="A" * 22) is None
    assert ran == []
    assert store.pop_if_confirmed("ana", "yes").executed


def test_yes_without_the_code_executes_nothing(store, ran):
    """An action that asks for a typed code is confirmed by that code only; no button does it."""
    store.create(PendingAction("ana", "delete", "Delete it", code="4821", requested_at=1.0), ran)
    for words in ("yes", "yes 4822", "yes 48210", "yes 482", "4821"):
        assert store.pop_if_confirmed("ana", words) is None
    assert store.pop_if_intent("ana", "confirm").status == "kind_mismatch"
    assert ran == []
    assert store.pop_if_confirmed("ana", "Yes 4821!").executed


@pytest.mark.parametrize("field", ["kind", "digest", "code"])
def test_fields_beside_the_record_cannot_be_forged(redis_store, ran, field):
    """Redis compares the plain copies in the hash. The action runs only if the signed record agrees."""
    action = redis_store.create(
        PendingAction("ana", "delete", "Delete it", code="4821", requested_at=1.0), ran
    )
    tamper(redis_store, action, **{field: "1234"})
    expected = {"args_digest": "1234"} if field == "digest" else {}
    code = "1234" if field == "code" else "4821"
    if field == "kind":
        tamper(redis_store, action, code="")
        outcome = redis_store.pop_if_intent("ana", "confirm", expected_kind="1234")
    else:
        outcome = redis_store.pop_if_confirmed("ana", f"yes {code}", **expected)
    assert outcome.status == "digest_mismatch"
    assert (ran, redis_store.get("ana")) == ([], None)


RECORD_EDITS = [
    ('"id":42', '"id":43'),
    ('"preview":"Delete it"', '"preview":"Delete all"'),
    ('"kind":"delete"', '"kind":"refund"'),
    ('"user_id":"ana"', '"user_id":"bob"'),
    ('"kind":"delete"', '"idempotent":true,"kind":"delete"'),
    ('"kind":"delete"', '"channel_id":"chat","kind":"delete"'),
    ('"kind":"delete"', '"kind":"delete","ttl_seconds":6000.0'),
    ("{", "["),
]


@pytest.mark.parametrize(("old", "new"), RECORD_EDITS)
def test_record_changed_in_redis_never_runs(redis_store, redis_client, ran, old, new):
    """A changed letter in the signed record ends the action, and the scope is free again."""
    action = stash(redis_store, ran)
    record = redis_client.hget(f"{SHARD}:pending:{action.pending_action_id}", "record")
    assert old in record
    tamper(redis_store, action, record=record.replace(old, new))
    assert redis_store.pop_if_confirmed("ana", "yes").status == "digest_mismatch"
    assert (ran, redis_store.get("ana")) == ([], None)
    stash(redis_store, ran)


def test_no_letter_of_a_record_or_its_mac_can_be_changed(redis_store, redis_client, ran):
    """Each letter in turn is changed directly in Redis. Nothing runs, and the person is told so."""
    action = stash(redis_store, ran)
    key = f"{SHARD}:pending:{action.pending_action_id}"
    genuine = redis_client.hgetall(key)
    edits = [(field, at) for field in ("record", "mac") for at in range(len(genuine[field]))]
    assert len(edits) > 300
    for field, at in edits:
        text = genuine[field]
        changed = text[:at] + ("b" if text[at] == "a" else "a") + text[at + 1 :]
        redis_client.hset(key, mapping={**genuine, field: changed})
        assert redis_store.pop_if_confirmed("ana", "yes").status == "digest_mismatch"
    redis_client.hset(key, mapping=genuine)
    assert ran == []
    assert redis_store.pop_if_confirmed("ana", "yes").executed


@pytest.mark.parametrize("mac", ["", "0" * 64, "é", ActionSigner(["other key"]).sign("{}")])
def test_record_with_another_mac_never_runs(redis_store, ran, mac):
    """Only a MAC of the store's own key over exactly this record counts."""
    tamper(redis_store, stash(redis_store, ran), mac=mac)
    assert redis_store.pop_if_intent("ana", "confirm").status == "digest_mismatch"
    assert ran == []


def test_genuine_record_under_another_id_never_runs(redis_store, redis_client, ran):
    """A record that was copied over another one, with its MAC, is not the one that was shown."""
    small = stash(redis_store, ran, channel_id="direct", conversation_id="ana")
    redis_store.drop("ana")
    copied = redis_client.hmget(f"{SHARD}:pending:{small.pending_action_id}", "record", "mac")
    tamper(redis_store, stash(redis_store, ran), record=copied[0], mac=copied[1])
    assert redis_store.pop_if_confirmed("ana", "yes").status == "digest_mismatch"
    assert ran == []


def test_genuine_record_of_another_user_never_runs(redis_store, redis_client, ran):
    """Pointing bob's scope at ana's action does not make bob's yes count."""
    here = {"channel_id": "chat", "conversation_id": "room"}
    stash(redis_store, ran, **here)
    (anas,) = redis_client.keys("*:open_action:*")
    bobs = anas.rpartition(":")[0] + ":81b637d8fcd2c6da6359"
    redis_store.stash("bob", kind="x", preview="x", **here)
    assert bobs in redis_client.keys("*:open_action:*")
    redis_client.set(bobs, redis_client.get(anas))
    assert redis_store.pop_if_confirmed("bob", "yes", **here).status == "digest_mismatch"
    assert ran == []


def test_record_that_vanished_is_nothing(redis_store, redis_client, ran):
    """A deleted record neither runs nor blocks its scope."""
    stash(redis_store, ran)
    redis_client.delete(*redis_client.keys("*:pending:*"))
    assert redis_store.pop_if_confirmed("ana", "yes") is None
    stash(redis_store, ran)


def test_button_of_another_kind_preserves_what_waits(store, ran):
    """A stale button neither runs nor ends the open action."""
    stash(store, ran)
    for intent in ("confirm", "cancel", "ignore"):
        assert store.pop_if_intent("ana", intent, expected_kind="refund").status == "kind_mismatch"
        assert store.pop_if_intent("ana", intent, expected_id="A" * 22).status == "kind_mismatch"
    assert ran == []
    assert store.pop_if_confirmed("ana", "yes").executed


def test_unknown_intent_is_an_ignore(store, ran):
    """An unreadable intent decides nothing."""
    action = stash(store, ran)
    assert store.pop_if_intent("ana", "launch").status == "ignored"
    assert (ran, store.get("ana").pending_action_id) == ([], action.pending_action_id)


def test_ignore_tightens_the_window(store, ran):
    """A tap that does not decide leaves a few seconds."""
    before = stash(store, ran).expires_at
    after = store.pop_if_intent("ana", "ignore", ignore_ttl_seconds=10).record.expires_at
    assert 45 < before - after <= 50
    assert ran == []


def test_tighten_never_lengthens(store, ran):
    """More seconds than are left change nothing, and fewer do."""
    action = stash(store, ran)
    assert store.tighten_ttl("ana", 3600).expires_at == action.expires_at
    assert store.tighten_ttl("ana", 1).expires_at < action.expires_at
    assert store.tighten_ttl("ana", 1, expected_id="A" * 22) is None


@pytest.mark.parametrize("seconds", [-1, -0.001])
def test_negative_window_is_refused(store, seconds):
    """A caller's mistake is named."""
    with pytest.raises(ValueError, match="0 or more seconds"):
        store.tighten_ttl("ana", seconds)


def test_cancel_ends_the_action(store, ran):
    """After a no, a yes finds no action."""
    stash(store, ran)
    assert store.pop_if_intent("ana", "cancel").status == "cancelled"
    assert (store.pop_if_confirmed("ana", "yes"), ran) == (None, [])


def test_drop_ends_the_action_and_returns_it(store, ran):
    """A second drop finds no action."""
    action = stash(store, ran)
    assert store.drop("ana").pending_action_id == action.pending_action_id
    assert (store.drop("ana"), store.get("ana"), store.pop_if_confirmed("ana", "yes"), ran) == (
        None,
        None,
        None,
        [],
    )


def test_cancel_that_came_after_a_yes_does_not_report_cancelled(store, ran):
    """The action was done, so `cancelled` would be wrong."""
    stash(store, ran)
    store.pop_if_confirmed("ana", "yes")
    assert (store.pop_if_intent("ana", "cancel"), store.drop("ana"), ran) == (None, None, ["ran"])


def test_second_proposal_is_refused_while_one_waits(store, ran):
    """One at a time: the user must know what the yes is for."""
    stash(store, ran)
    with pytest.raises(PendingActionExistsError, match="finish that one first"):
        stash(store, ran)


def test_expired_action_makes_room(store, ran):
    """An action that cannot be confirmed any more blocks no proposal."""
    close_window(store, stash(store, ran))
    assert store.get("ana") is None
    assert stash(store, ran).status == "pending"


def test_action_without_executor_is_reported(store):
    """An unknown kind after a deploy runs nothing, and the user is told."""
    stash(store, None)
    outcome = store.pop_if_confirmed("ana", "yes")
    assert (outcome.status, outcome.executed) == ("no_executor", False)
    assert "Nothing was done" in outcome.outcome_text
    assert store.pop_if_confirmed("ana", "yes") is None


def test_factory_rebuilds_the_executor_from_the_record(store):
    """The executor gets the recorded arguments, not those of a closure."""
    store.register_executor_factory("delete", lambda action: lambda: f"deleted {action.args['id']}")
    stash(store, None)
    assert store.pop_if_confirmed("ana", "yes").result == "deleted 42"


def test_factory_that_raises_runs_nothing(store):
    """A broken factory counts as a missing executor."""

    def factory(_action):
        raise RuntimeError("secret")

    store.register_executor_factory("delete", factory)
    stash(store, None)
    outcome = store.pop_if_confirmed("ana", "yes")
    assert outcome.status == "no_executor"
    assert "secret" not in outcome.outcome_text


def test_executor_that_raises_has_failed_and_is_not_run_again(store):
    """The user is told that it failed, without the error's text."""
    calls = []

    def executor():
        calls.append(1)
        raise RuntimeError("password hunter2")

    stash(store, executor)
    outcome = store.pop_if_confirmed("ana", "yes")
    assert (outcome.status, outcome.result) == ("failed", None)
    assert "hunter2" not in repr(outcome)
    assert (store.pop_if_confirmed("ana", "yes"), calls) == (None, [1])


def test_async_executor_is_awaited(store):
    """Executors may be coroutine functions."""

    async def executor():
        return "deleted"

    stash(store, executor)
    assert store.pop_if_confirmed("ana", "yes").result == "deleted"


@pytest.mark.parametrize("args", [{"a": (1, 2)}, {1: "a"}, {"a": object()}, {"a": float("nan")}])
def test_arguments_that_are_not_exact_json_are_refused(store, args):
    """Arguments without a digest cannot be proposed."""
    with pytest.raises(TypeError, match="not exact JSON"):
        stash(store, None, args=args)
    assert store.get("ana") is None


@pytest.mark.parametrize(
    "value",
    [
        "half of one: \ud83d",
        {"\ud83d\ude00": 1, "\uffff": 2},
        [[[]]] * 400,
        10**4000,
        1e300,
        "\0\u2028\u202e",
    ],
    ids=["half", "halves", "many", "big", "float", "marks"],
)
def test_action_with_any_json_arguments_can_be_confirmed(store, ran, value):
    """Odd letters and large numbers do not look like a changed record."""
    action = stash(store, ran, args={"value": value})
    assert action.args_digest == compute_args_digest(action.args)
    assert store.get("ana").args == action.args
    assert store.pop_if_confirmed(
        "ana", "yes", args_digest=compute_args_digest(action.args)
    ).executed


def test_arguments_nested_deeply_can_be_confirmed(store, ran):
    """The nesting is deeper than some JSON parsers allow."""
    deep: list = []
    for _ in range(220):
        deep = [deep]
    stash(store, ran, args={"value": deep})
    assert store.pop_if_confirmed("ana", "yes").record.args == {"value": deep}


def test_recorded_arguments_are_a_copy(store, ran):
    """A dict that changes after the preview does not change the action."""
    args = {"id": 42}
    stash(store, ran, args=args)
    args["id"] = 43
    assert store.get("ana").args == {"id": 42}


def test_memory_is_bounded_and_forgets_the_oldest(ran):
    """With one action over the limit the oldest is dropped; the others work."""
    store = InMemoryPendingStore(max_entries=2)
    for user in ("ana", "bob", "eve"):
        store.stash(user, kind="delete", preview="Delete it", executor=ran)
    assert store.pop_if_confirmed("ana", "yes") is None
    assert store.pop_if_confirmed("bob", "yes").executed
    assert store.pop_if_confirmed("eve", "yes").executed


def test_closures_are_bounded_and_the_factory_serves_instead(redis_client):
    """A closure is a shortcut; without it the factory rebuilds the executor."""
    store = RedisPendingStore(client=redis_client, secret_keys=["key"], max_executor_entries=1)
    store.register_executor_factory("delete", lambda _: lambda: "rebuilt")
    for user in ("ana", "bob"):
        store.stash(user, kind="delete", preview="Delete it", executor=lambda: "closure")
    assert [store.pop_if_confirmed(user, "yes").result for user in ("ana", "bob")] == [
        "rebuilt",
        "closure",
    ]


def test_another_process_with_the_key_can_confirm(redis_client):
    """The record alone is enough, even after the keys were rotated."""
    first = RedisPendingStore(client=redis_client, secret_keys=["old"])
    second = RedisPendingStore(client=redis_client, secret_keys=["new", "old"])
    second.register_executor_factory("delete", lambda _: lambda: "by the second")
    stash(first, None)
    assert second.pop_if_confirmed("ana", "yes").result == "by the second"


def test_yes_before_the_question_gets_early(redis_store, ran):
    """The action stays as it is."""
    action = stash(redis_store, ran)
    tamper(redis_store, action, state="armed", expires=0)
    assert redis_store.pop_if_intent("ana", "confirm").status == "early"
    assert (ran, redis_store.get("ana")) == ([], None)


@pytest.mark.parametrize("intent", ["confirm", "cancel", "ignore"])
def test_record_changed_before_the_question_is_cancelled(redis_store, ran, intent):
    """Every decision finds the change, not only a yes to a question that was shown."""
    action = stash(redis_store, ran)
    record = client_of(redis_store).hget(f"{SHARD}:pending:{action.pending_action_id}", "record")
    tamper(redis_store, action, state="armed", record=record.replace("42", "43"))
    assert redis_store.pop_if_intent("ana", intent).status == "digest_mismatch"
    assert ran == []


def test_scripts_are_loaded_again_after_a_flush(redis_store, redis_client, ran):
    """A restarted Redis has lost the scripts."""
    stash(redis_store, ran)
    redis_client.script_flush()
    assert redis_store.pop_if_confirmed("ana", "yes").executed


def test_every_key_in_redis_has_a_ttl_or_a_bound(redis_store, redis_client, ran):
    """Exceptions are the audit log, which is bounded and collected, and the write counter, which is one number."""
    stash(redis_store, ran)
    redis_store.pop_if_confirmed("ana", "yes")
    keys = [
        key
        for key in redis_client.keys("*")
        if ":audit" not in key and not key.endswith(":write_counter")
    ]
    assert keys
    assert all(0 < redis_client.pttl(key) <= 172_800_000 for key in keys)


def test_executor_of_a_sync_caller_runs_in_the_callers_thread(store):
    """The seed's methods are sync: the executor sees the caller's thread and context."""
    seen = []
    stash(store, lambda: seen.append((threading.current_thread(), idempotency_key())))
    outcome = store.pop_if_confirmed("ana", "yes")
    assert seen == [(threading.current_thread(), outcome.record.pending_action_id)]
    assert idempotency_key() == ""


def test_sync_methods_work_inside_a_running_loop(store):
    """A caller with a running loop may call them, even with an async executor."""

    async def executor():
        await asyncio.sleep(0)
        return "deleted"

    async def caller():
        stash(store, executor)
        return store.pop_if_confirmed("ana", "yes").result

    assert asyncio.run(caller()) == "deleted"


@pytest.mark.parametrize("error", [SystemExit(1), TimeoutError("mine"), asyncio.CancelledError()])
def test_executor_that_exits_has_failed(store, error):
    """A tool's sys.exit does not end the worker."""

    def executor():
        raise error

    stash(store, executor)
    assert store.pop_if_confirmed("ana", "yes").status == "failed"


OPERATIONS = {
    "stash": (lambda store: stash(store, print, channel_id="chat"), 1),
    "get": (lambda store: store.get("ana"), 1),
    "tighten": (lambda store: store.tighten_ttl("ana", 30), 1),
    "ignore": (lambda store: store.pop_if_intent("ana", "ignore"), 1),
    "stale button": (lambda store: store.pop_if_intent("ana", "confirm", expected_kind="other"), 1),
    "cancel": (lambda store: store.pop_if_intent("ana", "cancel"), 1),
    "drop": (lambda store: store.drop("ana"), 1),
    "no yes": (lambda store: store.pop_if_confirmed("ana", "hello"), 0),
    "yes": (lambda store: store.pop_if_confirmed("ana", "yes"), 2),
    "tap": (lambda store: store.pop_if_intent("ana", "confirm"), 2),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation_is_one_round_trip(redis_store, ran, monkeypatch, name):
    """A confirmation is two: the decision before the effect, and the outcome after it."""
    operation, expected = OPERATIONS[name]
    for script in redis_store.repository._scripts._scripts.values():
        client_of(redis_store).script_load(script.text)
    stash(redis_store, ran)
    sent = []
    send = AbstractConnection.send_packed_command
    monkeypatch.setattr(
        AbstractConnection,
        "send_packed_command",
        lambda *a, **k: (sent.append(a), send(*a, **k))[1],
    )
    operation(redis_store)
    assert len(sent) == expected


def test_lost_answers_change_nothing(redis_client, ran, monkeypatch):
    """The client repeats a call whose answer was lost, and every effect happens once."""
    store = RedisPendingStore(client=redis_client, secret_keys=["key"])
    monkeypatch.setattr(ShardedScripts, "arun", _asked_twice(ShardedScripts.arun))
    action = stash(store, ran)
    assert store.get("ana") == action
    assert store.pop_if_intent("ana", "ignore").status == "ignored"
    assert store.pop_if_confirmed("ana", "yes").executed
    assert ran == ["ran"]
    stash(store, ran)
    assert store.pop_if_intent("ana", "cancel").status == "cancelled"
    stash(store, ran)
    assert store.pop_if_confirmed("ana", "yes", args_digest="0" * 64).status == "digest_mismatch"
    close_window(store, stash(store, ran))
    assert store.pop_if_confirmed("ana", "yes").status == "expired"
    assert ran == ["ran"]
    events = [json.loads(entry)["event"] for entry in redis_client.lrange(f"{SHARD}:audit", 0, -1)]
    assert events.count("armed") == 4
    assert [
        events.count(event) for event in ("claimed", "started", "done", "cancelled", "expired")
    ] == [1, 1, 1, 2, 1]


def test_change_that_is_refused_for_a_late_result_is_refused_again(redis_store, redis_client, ran):
    """The answer to the refusal was lost, and the client repeats its call. The next change is made with the truth."""
    action = stash(redis_store, ran)
    tamper(redis_store, action, late_result="new")
    first = change_twice(redis_store, redis_client, action, "first answer")
    second = change_twice(redis_store, redis_client, action, "second answer")
    assert (first, second) == (["state", "state"], ["ok", "ok"])


def change_twice(store, redis_client, action: PendingAction, outcome_text: str) -> list[str]:
    """Send the same call to cancel an action twice, and return both statuses."""
    transition = Transition(action.pending_action_id, ("shown",), "cancelled", outcome_text, "e1")
    args = {"conversation": PLACE, "change": TurnChange(transition=transition).to_dict()}
    script, rest = store.repository._scripts.call("change", shard_of(PLACE), args, ())
    return [json.loads(redis_client.eval(script.text, *rest))["status"] for _ in range(2)]


def _asked_twice(arun):
    """Lose the first answer of every script."""

    async def twice(*args):
        await arun(*args)
        return await arun(*args)

    return twice


def crash_in_the_middle(store) -> list[int]:
    """Kill a process long ago in the middle of ana's action; return the list of runs."""
    runs = []

    def executor():
        runs.append(1)
        raise Killed

    with pytest.raises(Killed):
        stash_and_confirm(store, executor)
    return runs


class Killed(BaseException):
    """End of the process."""


def stash_and_confirm(store, executor):
    """Store ana's action and confirm it."""
    stash(store, executor)
    return store.pop_if_confirmed("ana", "yes")


def test_yes_after_a_crash_in_the_middle_gets_unknown(store):
    """A second yes gets nothing while the first may still run; later the outcome is unknown. It never runs again."""
    runs = crash_in_the_middle(store)
    assert store.pop_if_confirmed("ana", "yes") is None
    time_passes(store)
    outcome = store.pop_if_confirmed("ana", "yes")
    assert (outcome.status, runs) == ("unknown", [1])
    assert "cannot tell" in outcome.outcome_text
    assert store.pop_if_confirmed("ana", "yes") is None


def test_scope_is_free_again_after_a_crash_in_the_middle(store, ran):
    """A proposal may replace an action whose process died."""
    crash_in_the_middle(store)
    with pytest.raises(PendingActionExistsError):
        stash(store, ran)
    time_passes(store)
    stash(store, ran)
    assert store.pop_if_confirmed("ana", "yes").executed


def test_reconciler_is_asked_after_a_crash_in_the_middle(store):
    """The reconciler knows the outcome."""
    store.register_reconciler("delete", lambda record: f"{record.args['id']} is gone")
    crash_in_the_middle(store)
    time_passes(store)
    outcome = store.pop_if_confirmed("ana", "yes")
    assert (outcome.status, outcome.outcome_text) == ("executed", "42 is gone")


def test_late_yes_runs_no_started_action(store):
    """This holds for repeatable actions too: a yes long after gets the current state."""
    runs = []

    def killed():
        runs.append(1)
        raise Killed

    store.create(
        PendingAction("ana", "delete", "Delete it", idempotent=True, requested_at=1.0), killed
    )
    with pytest.raises(Killed):
        store.pop_if_confirmed("ana", "yes")
    store.register_executor_factory("delete", lambda _: lambda: runs.append(2))
    time_passes(store)
    assert store.pop_if_confirmed("ana", "yes", args_digest="0" * 64) is None
    assert store.pop_if_intent("ana", "confirm", expected_kind="other").status == "kind_mismatch"
    assert store.pop_if_confirmed("ana", "yes").status == "unknown"
    assert runs == [1]


def test_action_interrupted_by_ctrl_c_is_unknown_at_once(store):
    """The interrupt comes in the caller's thread. The scope is free, and the outcome is unknown."""

    def executor():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stash_and_confirm(store, executor)
    assert store.get("ana") is None
    stash(store, executor)


def test_repeated_decision_decides_no_other_action(redis_store, ran):
    """The answer was lost, and another action waits by now. The repeated call returns the first answer."""
    scope = Scope("ana", Conversation("direct", "ana"))
    decision = ActionDecision(scope, "confirm", "act")
    assert Blocking(redis_store.repository).decide(decision) == ("gone", None)
    stash(redis_store, ran)
    assert Blocking(redis_store.repository).decide(decision) == ("gone", None)
    assert redis_store.get("ana").status == "pending"


@pytest.mark.parametrize(("call", "answer"), [("yes", "yes"), ("confirm", "yes"), ("cancel", "no")])
def test_decision_of_a_program_is_recorded(store, ran, call, answer):
    """It has the words that the program passed on, and never counts as a turn of the person."""
    action = stash(store, ran)
    if call == "yes":
        store.pop_if_confirmed("ana", "yes")
    else:
        store.pop_if_intent("ana", call)
    (stored,) = Blocking(store.repository).load(PLACE, (action.pending_action_id,))
    record = DecisionRecord.from_json(stored.decision)
    assert record.is_genuine(store.signer)
    assert (record.form, record.answer, record.user_id) == ("program", answer, "ana")
    assert record.words == ("yes" if call == "yes" else "")
    assert (record.action_id, record.event_id) == ("", stored.decided_by_event)


def test_program_that_ignores_a_question_decides_nothing(store, ran):
    """No record is stored, and the question stays open."""
    action = stash(store, ran)
    store.tighten_ttl("ana", 5)
    (stored,) = Blocking(store.repository).load(PLACE, (action.pending_action_id,))
    assert (stored.state, stored.decision) == ("shown", "")
