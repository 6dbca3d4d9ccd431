"""Decisions about calls that wait for a person, and the paused run that a program keeps until then.

An OpenCall is what a person is asked. A Decision is the answer: Approve, Deny or Edit. A
RunSnapshot is the run that waits, as JSON for a database. A run that goes on with decisions returns
a DecidedCall for each. `outcome_entry` is what the model reads of a decision, whether a program or
a channel has carried it out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias, get_args

from sayso.agent.messages import NO_USAGE, ActionOutcome, Message, Role, UsageStats, has_valid_types
from sayso.agent.tools.screening import inert, inert_json
from sayso.agent.tools.text_cuts import truncate
from sayso.channels.types import without_invisible
from sayso.pending.action import ActionSigner, compute_args_digest, encode_canonical

#: What a model is told about a call whose outcome is unknown.
UNKNOWN_NOTE = "It may have taken effect or not. Do not repeat it without asking the user."
#: What a model is told together with an outcome. The outcomes that explain themselves have no note.
OUTCOME_NOTES: Mapping[ActionOutcome, str] = {
    "denied": (
        "The user said no. Nothing was done. Do not propose it again unless the user asks for it."
    ),
    "expired": "The user did not answer in time. Nothing was done.",
    "replaced": "It was not carried out, and the user is not asked any more.",
    "unknown": UNKNOWN_NOTE,
    "undone": "It was done, and undone later.",
}
#: Begins the note of a call whose arguments the user has changed before the decision.
CHANGED_ARGUMENTS = (
    "The user changed the arguments before answering: these count, not those of the call."
)
#: The version of the JSON of a snapshot. Others are refused.
SNAPSHOT_VERSION = 1
#: The most characters that a model reads of the words that a person wrote with a decision.
MAX_WORDS_CHARS = 500
#: The most characters that a model reads of the name of the person who decided.
MAX_NAME_CHARS = 100


class DecisionError(ValueError):
    """Raised when decisions do not fit the calls that wait. Then nothing has run or changed."""


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A call that waits for a decision: what the person is asked, and exactly what a yes runs.

    It has two ids. `call_id` is that of the model's call in the transcript, and never changes. `id`
    names what is decided now: it is the same until an Edit makes another question of the call
    ("call_1", then "call_1~2"), so that a decision about the old question decides nothing. In the
    run of an outer agent, the `id` of an inner call begins with the outer call (`inner_id`).
    """

    #: The key of its decision.
    id: str
    tool_name: str
    #: JSON values, checked and with their defaults.
    arguments: Mapping[str, Any]
    #: The text that the person agrees to.
    preview: str
    #: Why they are asked; "" for no reason.
    reason: str = ""
    #: The SHA-256 of the arguments, by which an approval names them. Computed unless it is given.
    args_digest: str = ""
    #: The names of the arguments that an Edit may change.
    editable: tuple[str, ...] = ()
    #: The id of the call that an Edit changed to this one, "" if the model wrote this one.
    changes_of: str = ""
    #: The id of the model's call in the history; `id` unless it is given.
    call_id: str = ""
    #: The digest of the tool's definition, as it was when the preview was shown.
    tool_digest: str = ""
    #: The digest of the values that the preview compares, as they were shown; "" for none.
    values_digest: str = ""

    def __post_init__(self) -> None:
        if not self.args_digest:
            object.__setattr__(self, "args_digest", compute_args_digest(self.arguments))
        if not self.call_id:
            object.__setattr__(self, "call_id", self.id)

    def check(self) -> None:
        """Raise DecisionError if the arguments are not those that were proposed."""
        if compute_args_digest(self.arguments) != self.args_digest:
            raise DecisionError(
                f"the arguments of {self.id!r} ({self.tool_name}) are not those that were proposed:"
                " the paused run was changed where it was stored. Ask again with a new run"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the call as JSON-ready data."""
        return asdict(self) | {"arguments": dict(self.arguments), "editable": list(self.editable)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> OpenCall:
        """Return the call that `to_dict` wrote.

        Raises TypeError, KeyError or ValueError for anything else.
        """
        if not data["args_digest"]:
            raise ValueError("an open call has no digest of its arguments")
        call = cls(**{**data, "editable": tuple(data["editable"])})
        # A dataclass checks no types, and the data may come from anywhere.
        for each in fields(call):
            value = getattr(call, each.name)
            if each.name == "arguments":
                is_valid = isinstance(value, Mapping)
            elif each.name == "editable":
                is_valid = all(isinstance(name, str) for name in value)
            else:
                is_valid = isinstance(value, str)
            if not is_valid:
                raise TypeError(f"an open call has {value!r} as its {each.name}")
        call.check()
        return call


@dataclass(frozen=True, slots=True)
class Approve:
    """A yes: the call runs once, with exactly its arguments."""

    #: The digest of the OpenCall that the person saw. If it is given, a call with other arguments
    #: is refused.
    args_digest: str = ""
    #: Who decided, for the model to read; "" for no name.
    decided_by: str = ""


@dataclass(frozen=True, slots=True)
class Deny:
    """A no: the call does not run. The model reads both texts."""

    #: Why the person said no, in their words; "" for no reason.
    message: str = ""
    #: Who decided; "" for no name.
    decided_by: str = ""


@dataclass(frozen=True, slots=True)
class Edit:
    """A change: the call is proposed again with other arguments, and needs an Approve of its own.

    `arguments` has the changed arguments only; the others stay. They must be `editable`. Schema,
    policy and preview check them like those of a model.
    """

    arguments: Mapping[str, Any]
    decided_by: str = ""


#: What a person decides about an open call.
Decision: TypeAlias = Approve | Deny | Edit


@dataclass(frozen=True, slots=True)
class DecidedCall:
    """The outcome of a call that was decided, for the program that gave the decision."""

    #: That of the OpenCall.
    id: str
    tool_name: str
    arguments: Mapping[str, Any]
    outcome: ActionOutcome
    #: The tool's result, or why there is none.
    text: str = ""
    #: Who decided; "" for no name.
    decided_by: str = ""


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """A run that waits for decisions, as a program stores it.

    It goes on in any process with the same agent: `agent.run(paused=snapshot, decisions=...)`. It
    holds what people, models and tools have written, but no keys, no injected arguments and no
    code.
    """

    run_id: str
    #: How often the model was asked so far.
    iterations: int
    usage: UsageStats = NO_USAGE
    #: The messages of the run so far. The result of a call that waits has no text.
    messages: tuple[Message, ...] = ()
    #: The calls of this run that wait.
    calls: tuple[OpenCall, ...] = ()
    #: The waiting runs of the agents that calls of this run have asked, by the id of the call.
    inner: Mapping[str, RunSnapshot] = field(default_factory=dict)

    @property
    def open_calls(self) -> tuple[OpenCall, ...]:
        """All calls that wait for a decision, in the order in which the model made them.

        The calls of inner runs are among them, under the ids that `inner_id` gives them.
        """
        return tuple(self._open_calls())

    def _open_calls(self) -> Iterator[OpenCall]:
        """Yield the calls that wait, in the order of their results in `messages`."""
        own = {call.call_id: call for call in self.calls}
        for message in self.messages:
            if message.role is not Role.TOOL:
                continue
            call_id = message.tool_call_id
            if call_id in own:
                yield own[call_id]
            if call_id not in self.inner:
                continue
            for each in self.inner[call_id].open_calls:
                changes_of = ""
                if each.changes_of:
                    changes_of = inner_id(call_id, each.changes_of)
                yield replace(each, id=inner_id(call_id, each.id), changes_of=changes_of)

    def to_dict(self, keys: Sequence[str] = ()) -> dict[str, Any]:
        """Return the run as JSON-ready data.

        With `keys`, which are secret, the data gets a seal: a MAC by the first key, by which
        `from_dict` detects a change.
        """
        data: dict[str, Any] = {
            "version": SNAPSHOT_VERSION,
            "run_id": self.run_id,
            "iterations": self.iterations,
            "usage": self.usage.to_dict(),
            "messages": [message.to_dict() for message in self.messages],
            "calls": [call.to_dict() for call in self.calls],
            "inner": {call_id: run.to_dict() for call_id, run in self.inner.items()},
        }
        if keys:
            data["mac"] = ActionSigner(keys).sign(_sealed_text(data))
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], keys: Sequence[str] = ()) -> RunSnapshot:
        """Return the run that `to_dict` wrote, also after it was written as JSON and read again.

        With `keys`, the run must be sealed with one of them, and unchanged since. Raises ValueError
        for another seal or version, and for calls whose arguments were changed; KeyError, TypeError
        or ValueError for anything but a stored run.
        """
        if keys and not _has_valid_seal(data, keys):
            raise ValueError(
                "this paused run was not sealed with one of the keys, or was changed since:"
                " do not go on with it"
            )
        version = data.get("version")
        if version != SNAPSHOT_VERSION:
            raise ValueError(
                f"a paused run of version {version!r} cannot be read here:"
                f" this is {SNAPSHOT_VERSION}"
            )
        run_id = data["run_id"]
        iterations = data["iterations"]
        usage = UsageStats(**data["usage"])
        has_right_types = isinstance(run_id, str) and isinstance(iterations, int)
        if not has_right_types or not has_valid_types(usage):
            raise TypeError("a paused run has a count or an id of the wrong type")
        return cls(
            run_id=run_id,
            iterations=iterations,
            usage=usage,
            messages=tuple(map(Message.from_dict, data["messages"])),
            calls=tuple(map(OpenCall.from_dict, data["calls"])),
            inner={str(call_id): cls.from_dict(run) for call_id, run in data["inner"].items()},
        )


def _sealed_text(data: Mapping[str, Any]) -> str:
    """Return the text that the seal of a stored run covers: the whole record but the seal."""
    sealed = {name: value for name, value in data.items() if name != "mac"}
    return f"run\0{encode_canonical(sealed)}"


def _has_valid_seal(data: Mapping[str, Any], keys: Sequence[str]) -> bool:
    mac = data.get("mac", "")
    return isinstance(mac, str) and ActionSigner(keys).verify(_sealed_text(data), mac)


def inner_id(call_id: str, id_: str) -> str:
    """Return the id that the outer run has for a call of an inner run.

    `call_id` is the call of the outer run that asked the inner agent. `id_` is the id of the call
    in the inner run.
    """
    return f"{call_id}/{id_}"


def check_decisions(open_calls: Sequence[OpenCall], decisions: Mapping[str, Decision]) -> None:
    """Raise DecisionError for a decision that does not fit a call that waits."""
    known = {call.id: call for call in open_calls}
    if not isinstance(decisions, Mapping):
        raise DecisionError(
            f"decisions={decisions!r}: give an object with a decision for each id of"
            f" {sorted(known)}"
        )
    for id_, decision in decisions.items():
        call = known.get(id_)
        if call is None:
            raise DecisionError(f"no call {id_!r} waits for a decision; known: {sorted(known)}")
        if not isinstance(decision, get_args(Decision)):
            raise DecisionError(
                f"the decision about {id_!r} is {decision!r}: give Approve(), Deny() or"
                f" Edit({{...}}); known calls: {sorted(known)}"
            )
        call.check()
        _check_decision(call, decision)


def _check_decision(call: OpenCall, decision: Decision) -> None:
    """Raise DecisionError for a decision with a field that is wrong, by itself or for this call."""
    for each in fields(decision):
        value = getattr(decision, each.name)
        if each.name != "arguments" and not isinstance(value, str):
            raise DecisionError(
                f"the decision about {call.id!r} has {each.name}={value!r}: give a text"
            )
    match decision:
        case Approve(args_digest=digest) if digest not in ("", call.args_digest):
            raise DecisionError(
                f"the approval of {call.id!r} is for arguments with the digest {digest!r}, "
                f"and the call has {call.args_digest!r}: show the person the call that waits now"
            )
        case Edit(arguments=arguments) if not isinstance(arguments, Mapping) or not arguments:
            raise DecisionError(
                f"the edit of {call.id!r} changes {arguments!r}: give an object with arguments"
            )


def outcome_entry(
    outcome: ActionOutcome | Literal[""],
    *,
    result: Any = None,
    error: Any = None,
    words: str = "",
    decided_by: str = "",
    at: float = 0.0,
    arguments: Mapping[str, Any] | None = None,
    note: str = "",
) -> dict[str, Any]:
    """Return what the model reads of a decided call, as JSON-ready data without empty fields.

    * `outcome`: what became of the call; "" while that is not known.
    * `result` or `error`: what the tool returned, or why it failed. None for neither.
    * `words`: what the person wrote with the decision. It is data, never a result.
    * `decided_by`: who decided; "" for no name.
    * `at`: when the outcome was reached, in Unix seconds; 0.0 if that is not known.
    * `arguments`: those that the person has changed; None for a call without changes.
    * `note`: what the outcome means; "" for the usual note.
    """
    entry: dict[str, Any] = {"outcome": outcome}
    if result is not None:
        entry["result"] = result
    if error is not None:
        entry["error"] = error
    if words.strip():
        entry["words"] = truncate(inert(words.strip()), MAX_WORDS_CHARS)
    if decided_by.strip():
        entry["decided_by"] = inert(without_invisible(decided_by)[:MAX_NAME_CHARS])
    if at:
        entry["at"] = f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%SZ}"
    if arguments is not None:
        entry["arguments"] = inert_json(arguments)  # a person has typed some of them

    if outcome:
        note = note or OUTCOME_NOTES.get(outcome, "")
    if arguments is not None:
        note = f"{CHANGED_ARGUMENTS} {note}".rstrip()
    if note:
        entry["note"] = note
    return entry
