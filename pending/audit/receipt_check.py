"""Check a decision receipt with the public keys alone, and say in words what it proves.

A receipt comes from outside, so nothing in it is trusted before its signature is verified. Any file
can be read safely: a file that is no receipt is refused with a reason.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, NoReturn, get_args, get_origin, get_type_hints

from sayso.infra.terminal import one_line
from sayso.pending.action import encode_canonical
from sayso.pending.audit.receipt_keys import PublicKey
from sayso.pending.audit.receipts import (
    RECEIPT_TYPE,
    RECEIPT_VERSION,
    DecisionReceipt,
    ReceiptDecision,
    part_digest,
)

#: The largest receipt that is read, in bytes. Only a plan with many large steps is nearly so large.
MAX_RECEIPT_BYTES = 16_000_000
#: The most characters of arguments, a preview or words in one line of the description.
MAX_DESCRIBED_CHARS = 2_000


class ReceiptRefused(Exception):
    """Raised for a file that is no genuine receipt. `problems` are texts that say what is wrong."""

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


def check_receipt(content: bytes, keys: Mapping[str, PublicKey]) -> DecisionReceipt:
    """Return the receipt in a file, if one of the keys signed exactly this receipt.

    `content` is the file, `keys` the public keys by their ids. Raises ReceiptRefused.
    """
    try:
        return _check(content, keys)
    except RecursionError:
        raise ReceiptRefused("not a receipt: it is nested too deeply") from None


def _check(content: bytes, keys: Mapping[str, PublicKey]) -> DecisionReceipt:
    """Do what `check_receipt` does. Raises RecursionError for JSON that is nested too deeply."""
    text, data = _parse(content)
    if not isinstance(data, dict) or data.get("type") != RECEIPT_TYPE:
        raise ReceiptRefused("not a receipt: it does not have the type of one")
    version = data.get("version")
    # True equals 1 in Python.
    if type(version) is not int or version != RECEIPT_VERSION:
        raise ReceiptRefused(
            f"wrong version: the receipt says {one_line(repr(version), 60)}, "
            f"and this Sayso reads {RECEIPT_VERSION}"
        )
    receipt: DecisionReceipt = _read(DecisionReceipt, data, "")

    key = keys.get(receipt.key_id)
    if key is None:
        raise ReceiptRefused(
            f"unknown key: the receipt names {one_line(receipt.key_id, 60)}, "
            f"and the public keys given are {', '.join(keys)}"
        )
    if not key.verify(receipt.signature, receipt.signed_text):
        raise ReceiptRefused(
            "the signature does not fit: the key id, the digests or the signature were changed, "
            "or another bot signed it"
        )

    # The signature covers the digests. So a part that does not fit its digest was changed.
    problems = _changed_parts(receipt)
    if problems:
        raise ReceiptRefused(*problems)
    # All parts are genuine. But there is only one way to write a receipt, so that two different
    # files are never the same receipt.
    if text != receipt.to_json():
        raise ReceiptRefused("the file was reformatted: a receipt is one line of canonical JSON")
    return receipt


def _parse(content: bytes) -> tuple[str, Any]:
    """Return the text of a file and its JSON value, or raise ReceiptRefused."""
    if len(content) > MAX_RECEIPT_BYTES:
        raise ReceiptRefused(f"not a receipt: it has more than {MAX_RECEIPT_BYTES:,} bytes")
    try:
        text = content.decode("ascii")
    except ValueError:
        raise ReceiptRefused("not a receipt: it has bytes that no receipt has") from None
    try:
        return text, json.loads(text, object_pairs_hook=_object, parse_constant=_refuse_constant)
    except ValueError as exc:
        raise ReceiptRefused(f"not a receipt: it is no JSON ({exc})") from None


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON. Raises ReceiptRefused for a name that occurs twice.

    Programs that read JSON disagree on which of two equal names counts.
    """
    data: dict[str, Any] = {}
    for name, value in pairs:
        if name in data:
            raise ReceiptRefused(
                f"not a receipt: an object has the name {one_line(name, 60)!r} twice"
            )
        data[name] = value
    return data


def _refuse_constant(name: str) -> NoReturn:
    """Refuse NaN and Infinity, which Python reads and JSON does not have."""
    raise ReceiptRefused(f"not a receipt: {name} is no JSON")


def _read(kind: Any, value: Any, name: str) -> Any:
    """Return a value of JSON as a value of the type `kind`.

    `name` is the path of the value in the receipt, such as `decisions[0].words`; "" for the whole.
    Raises ReceiptRefused for a missing or unknown field, and for a value of another type.
    """
    if is_dataclass(kind):
        return _read_object(kind, value, name)
    if get_origin(kind) is tuple:
        (member_kind, _) = get_args(kind)
        _check_type(list, value, name)
        members = enumerate(value)
        return tuple(_read(member_kind, each, f"{name}[{number}]") for number, each in members)
    _check_type(get_origin(kind) or kind, value, name)
    return value


def _read_object(kind: Any, value: Any, name: str) -> Any:
    """Return an object of JSON as an instance of the dataclass `kind`. See `_read`."""
    _check_type(dict, value, name)
    known = {each.name for each in fields(kind)}
    prefix = f"{name}." if name else ""
    for missing in sorted(known - value.keys()):
        raise ReceiptRefused(f"changed field: {prefix}{missing} is missing")
    for unknown in sorted(value.keys() - known):
        raise ReceiptRefused(f"changed field: {prefix}{one_line(unknown, 60)} is no field of one")
    hints = get_type_hints(kind)
    read = {each: _read(hints[each], value[each], f"{prefix}{each}") for each in known}
    return kind(**read)


def _check_type(kind: type, value: Any, name: str) -> None:
    """Raise ReceiptRefused unless the value is of exactly this type: True is no int."""
    if type(value) is not kind:
        raise ReceiptRefused(
            f"changed field: {name} is of type {type(value).__name__}, and should be {kind.__name__}"
        )


def _changed_parts(receipt: DecisionReceipt) -> list[str]:
    """Return a text for each part of the receipt that does not fit its digest."""
    digests = {name: part_digest(value) for name, value in receipt.parts()}
    problems = []
    for name in sorted(digests.keys() | receipt.digests.keys()):
        if name not in digests:
            problems.append(f"changed field: {name} was removed")
        elif name not in receipt.digests:
            problems.append(f"changed field: {name} was added")
        elif digests[name] != receipt.digests[name]:
            problems.append(f"changed field: {name} is not what was signed")
    return problems


def describe_receipt(receipt: DecisionReceipt) -> Iterator[str]:
    """Yield the lines that say to a person what a genuine receipt proves."""
    action = receipt.action
    yield f"The receipt is genuine: the key {receipt.key_id} of the bot {receipt.bot!r} signed it."
    yield f"Action {action.id}: {_call(action.tool, action.arguments)}"
    yield f"  shown as: {one_line(action.preview, MAX_DESCRIBED_CHARS)}"
    yield f"  SHA-256 of the arguments: {action.args_digest}"
    yield f"  SHA-256 of the stored record: {action.record_sha256}"
    yield f"  proposed to {_account(action.channel, action.user_id, action.user_name)}"
    for number, step in enumerate(receipt.steps, start=1):
        yield f"  step {number}, {step.state}: {_call(step.tool, step.arguments)}"
    for decision in receipt.decisions:
        yield _decision(decision, receipt)
    outcome = receipt.outcome
    text = f": {one_line(outcome.text, MAX_DESCRIBED_CHARS)}" if outcome.text else ""
    yield f"Outcome: {outcome.state} at {outcome.at}{text}"
    yield from (f"note: {one_line(note, MAX_DESCRIBED_CHARS)}" for note in receipt.notes)
    yield "It proves what the bot recorded, not that a tool did what it reported."


def _call(tool: str, arguments: Mapping[str, Any]) -> str:
    """Return a call of a tool as one line: the name, and the arguments as JSON."""
    return one_line(f"{tool} {encode_canonical(arguments)}", MAX_DESCRIBED_CHARS)


def _account(channel: str, user_id: str, user_name: str) -> str:
    """Return a person for an operator to read. `user_name`: what the platform calls them."""
    name = f" ({_quoted(user_name)})" if user_name else ""
    return f"{one_line(user_id, MAX_DESCRIBED_CHARS)}{name} on {one_line(channel, MAX_DESCRIBED_CHARS)}"


def _quoted(text: str) -> str:
    """Return what a person wrote, in quotes.

    Quotes in the text are escaped, so that the text cannot seem to end earlier.
    """
    return json.dumps(one_line(text, MAX_DESCRIBED_CHARS), ensure_ascii=False)


def _decision(decision: ReceiptDecision, receipt: DecisionReceipt) -> str:
    """Return the sentences about one decision."""
    who = _account(decision.channel, decision.user_id, decision.user_name)
    if decision.person:
        who = f"{one_line(decision.person, MAX_DESCRIBED_CHARS)}, {who},"
    match decision.form:
        case "words":
            how = f"by the words {_quoted(decision.words)}"
        case "tap":
            how = "by a tap on a button"
            if decision.standing_yes:
                how += ", as a standing yes that also counts for later calls"
        case "standing":
            granting_id = one_line(decision.standing_yes, MAX_DESCRIBED_CHARS)
            how = f"by the standing yes to the action {granting_id}"
        case _:
            how = "by a program"
            if decision.words:
                how += f" that passed on the words {_quoted(decision.words)}"

    places = []
    if decision.message_id:
        places.append(f"in the message {one_line(decision.message_id, MAX_DESCRIBED_CHARS)}")
    if decision.question_message_id:
        places.append(
            f"on the message {one_line(decision.question_message_id, MAX_DESCRIBED_CHARS)}"
        )
    where = "".join(f" {place}" for place in places)
    sentence = f"{who} said {decision.answer} at {decision.at} {how}{where}."
    if decision.reason:
        sentence += f" The reason: {_quoted(decision.reason)}."
    if decision.action_id != receipt.action.id:
        sentence += (
            f" That was about the plan {decision.action_id}, "
            f"whose stored record has the SHA-256 {decision.record_sha256}."
        )
    return sentence
