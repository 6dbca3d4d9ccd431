"""Mutants: deliberately broken rules. The machine must catch every one of them, or it would not catch a real one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from sayso.agent.channel import continuations
from sayso.agent.channel.confirmation import ConfirmationHandler
from sayso.agent.channel.continuations import Continuations
from sayso.agent.channel.other_messages import OtherMessages
from sayso.agent.channel.outcome_answers import OutcomeAnswers
from sayso.agent.channel.outcome_history import OutcomeHistory
from sayso.agent.messages import Role
from sayso.channels.i18n.texts import texts_for
from sayso.channels.types import Conversation, Scope
from sayso.pending import action as seal
from sayso.pending.action import After
from sayso.pending.finished_actions import FinishedActions
from sayso.pending.settlement import Settlement
from sayso.pending.stored_action import StoredAction
from tests.model.wire import Patches


@dataclass(frozen=True, slots=True)
class Mutant:
    """One broken rule: replacements for texts of scripts, and for attributes of classes or modules."""

    name: str
    scripts: Patches = field(default_factory=dict)
    python: Mapping[tuple[Any, str], Any] = field(default_factory=dict)
    #: What follows a decision in the schedules that must catch it.
    after: After = "say"

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Break the Python part inside the `with` block. The loader of the scripts applies `scripts`."""
        before = {(owner, name): owner.__dict__[name] for owner, name in self.python}
        for (owner, name), broken in self.python.items():
            setattr(owner, name, broken)
        try:
            yield
        finally:
            for (owner, name), whole in before.items():
                setattr(owner, name, whole)


def _cut(name: str, **texts: str) -> Mutant:
    """Return a mutant that removes these texts from its scripts."""
    return _swap(name, **{script: (text, "") for script, text in texts.items()})


def _swap(name: str, **texts: tuple[str, str]) -> Mutant:
    """Return a mutant that replaces texts in its scripts; "shared" stands for the parts that scripts share."""
    return Mutant(
        name, {"*" if script == "shared" else script: [pair] for script, pair in texts.items()}
    )


def _code(name: str, *changes: Mapping[tuple[Any, str], Any]) -> Mutant:
    """Return a mutant of Python code."""
    return Mutant(
        name, python={place: broken for change in changes for place, broken in change.items()}
    )


def _after(owner: Any, name: str, wrap: Callable[..., Any]) -> dict[tuple[Any, str], Any]:
    """Return the replacement of a function by `wrap`, which gets the original as its first argument."""
    whole = owner.__dict__[name]
    return {(owner, name): lambda *args, **options: wrap(whole, *args, **options)}


def _button_mac_without_scope(
    whole: Callable[..., Any], key: bytes, pid: str, letter: str, scope: Scope
) -> Any:
    return whole(key, pid, letter, Scope("", Conversation("", "")))


def _verify_without_scope(
    _: Any, stored: StoredAction, keys: seal.ActionSigner, scope: Scope
) -> bool:
    return keys.verify(stored.record, stored.mac)


async def _stays_armed(whole: Any, part: OtherMessages, context: Any, stored: StoredAction) -> Any:
    answer = await whole(part, context, stored)
    return replace(answer, change=replace(answer.change, transition=None))


async def _not_yet_undone(whole: Any, part: ConfirmationHandler, context: Any) -> Any:
    named = context.named_action
    if named and named.state == "done" and "of" in named.action.args:
        context = replace(context, named_action=replace(named, state="shown"))
    return await whole(part, context)


async def _never_happened(*_: Any) -> bool:
    return False


async def _told_another_outcome(*_: Any) -> str:
    return "That was settled before."


async def _told_done_always(
    whole: Any, part: OutcomeAnswers, context: Any, stored: StoredAction, press: Any
) -> Any:
    answer = await whole(part, context, stored, press)
    done = texts_for(stored.action.language).already_done(stored.action.preview)
    replies = []
    for turn_reply in answer.change.replies:
        reply = turn_reply.reply
        if not reply.edits:
            reply = replace(reply, text=done)
        replies.append(replace(turn_reply, reply=reply))
    return answer.with_changes(replies=tuple(replies))


async def _told_again_in_full(
    _: Any, part: OutcomeAnswers, context: Any, stored: StoredAction, _press: Any
) -> Any:
    return await part.answer_ended(context, stored)


async def _decides_nothing(whole: Any, *args: Any, **options: Any) -> Any:
    return await whole(*args, **(options | {"is_deciding": False}))


def _knows_no_other_question(case: Any, _: Any, paused: Any) -> bool:
    history = case.memory.get_history()
    return not history or (history[-1].role is Role.ASSISTANT and paused is None)


def _knows_no_pause(whole: Any, case: Any, decided: Any, _: Any) -> bool:
    return bool(whole(case, decided, None))


async def _nothing_to_tell(*_: Any) -> Any:
    return "", ()


async def _says_nothing(whole: Any, *args: Any, **options: Any) -> Any:
    return replace(await whole(*args, **options), replies=())


async def _reads_nothing(*_: Any, **__: Any) -> None:
    return None


async def _called_done(whole: Any, *args: Any) -> Any:
    return replace(await whole(*args), status="executed")


_FENCE = "if not holds_lease() then return cjson.encode({status = 'lost'}) end"
_FENCE_OF_CLAIM = "if has_lease and not holds_lease() then return answer('lost', '') end"
_FENCE_OF_START = "if args.epoch and not holds_lease() then return 'lost' end"
_FENCE_UNLESS_STEP = _FENCE_OF_CLAIM.replace(
    "has_lease", "has_lease and not redis.call('HGET', action_key(action_id), 'plan')"
)
_LIVE_LEASE = "if is_leased and redis.call('HGET', conversation_key, 'token') ~= args.token then return false end"
_WAKE = "if not was_expected or (is_hurried and not is_leased) then wake_worker(3, is_hurried) end"
_SAME = "record ~= ARGV[2] or mac ~= args.mac"
_AUDIT = "append_audit(action_id, states, decided_by_event or '', mac or '')"
_MINE = "if state == 'claimed' or state == 'started' then return answer('mine', state) end"
_AUDIT_FIRST = "for _, new_action in ipairs(args.change.new_actions) do append_audit(new_action.action_id, {'armed'}, '', new_action.mac) end\n"
_DONE_UNDO = "state == 'done' and string.find(record, 'undo:', 1, true)"
_BUTTON_FOR_ALL_USERS = _after(seal, "_button_mac", _button_mac_without_scope)

_LANE = (
    _cut("no fence in commit", commit=_FENCE),
    _cut("no fence in settle", delivered=_FENCE),
    _cut("no fence in claim", claim=_FENCE_OF_CLAIM),
    _cut("no fence in start", start=_FENCE_OF_START),
    _cut("lease stolen while live", lease=_LIVE_LEASE),
    _cut(
        "burial of the living", release_dead_worker=" and string.sub(token, 1, #prefix) == prefix"
    ),
    _swap("no dedup in accept", accept=("if earlier_seq then", "if false then")),
    _swap("dedup without storing", accept=("redis.call('RPUSH', inbox, ", "tostring(")),
    _swap("no index of work", accept=(_WAKE, "")),
    Mutant(
        "a commit sent twice is done twice",
        {
            "commit": [
                ("if conversation_number('last_done_turn') >= args.seq then", "if false then"),
                (" or first.seq ~= args.seq", ""),
            ]
        },
    ),
    _swap(
        "repeated replies are not marked",
        shared=(
            "return redis.call('HEXISTS', conversation_key, 'suspect:' .. number) == 1",
            "return false",
        ),
    ),
    _swap(
        "half of a question opens the window",
        delivered=(
            "if reply.role == 'question' then\n    open_window(",
            "if asks then\n    open_window(",
        ),
    ),
    _swap(
        "a question of which half is refused stays armed",
        delivered=(
            "if asks and redis.call('HGET',",
            "if reply.role == 'question' and redis.call('HGET',",
        ),
    ),
    _swap(
        "an undeliverable question stays armed",
        delivered=("'state') == 'armed' then", "'state') == 'no' then"),
    ),
)
_WINDOW = (
    _swap(
        "expiry ignored",
        claim=("if decided_at >= (tonumber(expires_at) or 0) then", "if false then"),
    ),
    _cut("expiry judged at the time of work", claim="decided_at = first.received_at"),
    _swap("early yes counts", claim=("if has_lease and args.kind == 'text' and", "if false and")),
    Mutant(
        "window opens at arming",
        {
            "*": [
                ("'expires_at', now() + window_ms, ", ""),
                ("expires_at = 0\n", "expires_at = now() + new_action.ttl_ms\n"),
            ]
        },
    ),
)
_CONSENT = (
    _code(
        "claim by anybody",
        _BUTTON_FOR_ALL_USERS,
        _after(StoredAction, "is_genuine", _verify_without_scope),
    ),
    _code("another user's button disarms", _BUTTON_FOR_ALL_USERS),
    _code("MAC not checked", {(StoredAction, "is_genuine"): lambda *_: True}),
    _swap(
        "record compared without its MAC",
        claim=(_SAME, "record ~= ARGV[2]"),
        start=(_SAME, "record ~= ARGV[2]"),
    ),
    _swap("record not compared", claim=(_SAME, "false"), start=(_SAME, "false")),
    _code("unrelated text does not disarm", _after(OtherMessages, "drop_and_run", _stays_armed)),
)
_EFFECT = (
    Mutant(
        "a started action runs again",
        {
            "claim": [
                (_MINE, _MINE.replace("'mine', state", "'mine', 'claimed'")),
            ],
            "start": [("and (idempotent == '1' or steps)", "")],
        },
    ),
    _swap("a repeatable action runs without end", start=("> MAX_STARTS then", "> 99 then")),
    _code("an interrupted action is called failed", {(Settlement, "_reconcile"): _never_happened}),
    _swap("finish refuses the late truth", finish=("and not late then", "then")),
    _cut("the late truth is not told", finish="append_reply(args.correction)"),
    _cut(
        "an abandoned action stays open",
        commit="end_unsettled(redis.call('GET', open_action_key(user)))",
    ),
    _swap(
        "a claim asked twice is refused",
        claim=(_MINE, ""),
    ),
    _swap(
        "a start asked twice is refused",
        start=("and attempt_id == args.attempt_id then return 'go'", "and false then"),
    ),
    _code(
        "a yes to something else confirms", {(StoredAction, "was_last_message"): lambda *_: True}
    ),
    _code("twins hear something else", {(OutcomeAnswers, "outcome_text"): _told_another_outcome}),
    _code(
        "twins hear the whole result again",
        _after(OutcomeAnswers, "answer_again", _told_again_in_full),
    ),
    _code(
        "twins hear that everything is done",
        _after(OutcomeAnswers, "answer_again", _told_done_always),
    ),
)
_PLANS_AND_UNDO = (
    _code("steps go on after a failure", _after(Settlement, "_run_step", _called_done)),
    _code(
        "twins hear that what was undone is done",
        {(FinishedActions, "was_undone"): _never_happened},
    ),
    _swap("a step needs no lease", claim=(_FENCE_OF_CLAIM, _FENCE_UNLESS_STEP)),
    _swap("steps outlive their plan", shared=("if OPEN_STATES[step_state] then", "if false then")),
    Mutant(
        "what was undone is undone again",
        {
            "claim": [
                (
                    "if state ~= 'shown' and not is_covered then return answer('other'",
                    f"if state ~= 'shown' and not ({_DONE_UNDO}) then return answer('other'",
                )
            ]
        },
        _after(ConfirmationHandler, "answer_tap", _not_yet_undone),
    ),
)
_LOG = (
    _swap("audit entry written before the change", commit=(_FENCE, _AUDIT_FIRST + _FENCE)),
    _swap("no audit entry of a claim", shared=(_AUDIT, f"if state ~= 'claimed' then {_AUDIT} end")),
    _swap(
        "audit entries do not name the one before",
        shared=("hash = redis.sha1hex(entries[at])", "hash = NO_HEAD"),
    ),
)

_GOING_ON = (
    _swap(
        "a continuation is not appended", commit=("append_continuation(change.continuation)", "")
    ),
    _code(
        "a turn that was taken over does not go on",
        _after(OutcomeAnswers, "answer_ended", _decides_nothing),
    ),
    _code(
        "the agent goes on while a question waits",
        {(continuations, "has_answer"): _knows_no_other_question},
    ),
    _code("a second tap ends the request", _after(continuations, "has_answer", _knows_no_pause)),
    _code("an outcome is left untold", {(OutcomeAnswers, "outcome_to_tell"): _nothing_to_tell}),
    _code("a failed continuation is silent", _after(Continuations, "give_up", _says_nothing)),
    _code("the agent reads no outcome", {(OutcomeHistory, "refresh"): _reads_nothing}),
)

MUTANTS = (
    *_LANE,
    *_WINDOW,
    *_CONSENT,
    *_EFFECT,
    *_PLANS_AND_UNDO,
    *_LOG,
    *(replace(each, after="continue") for each in _GOING_ON),
)
