"""Votes in the bodies of the audit log: how they are added, read, and erased with their person."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from sayso.pending.approvals.votes import Vote


@dataclass(frozen=True, slots=True)
class ErasedVote:
    """What stays of a vote whose person was erased: nothing that is personal.

    It has no seal any more, so it proves no answer.
    """

    #: The event id of the answer. "" if the vote could not be read.
    event_id: str
    #: When the person was erased, in Unix milliseconds.
    erased_at: int

    def to_json(self) -> str:
        """Return the erased vote as one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ErasedVote:
        """Read the result of `to_json`. Raises ValueError or TypeError on anything else."""
        return cls(**_object(text))


#: A line of votes: a vote, what stays of one, or None for a line that cannot be read.
VoteLine = Vote | ErasedVote | None


def read_votes(votes: str) -> Iterator[VoteLine]:
    """Yield what the lines of a body say. The seals are not verified."""
    for line in votes.split("\n"):
        if line:
            yield _read_line(line)


def add_votes(known: str, collected: str) -> str:
    """Return the known votes with those that were collected and are not known.

    The vote of an erased person does not come back. Only this module writes an `ErasedVote`, so one
    that was collected is not added.
    """
    lines = known.split("\n") if known else []
    erased = {vote.event_id for vote in read_votes(known) if isinstance(vote, ErasedVote)}
    for line in collected.split("\n"):
        if not line or line in lines:
            continue
        vote = _read_line(line)
        if isinstance(vote, ErasedVote):
            continue
        if vote is None or vote.event_id not in erased:
            lines.append(line)
    return "\n".join(lines)


def erase_votes(votes: str, user: str, at: int) -> str:
    """Return the votes without personal data of the person with this id.

    `at` is the present time in Unix milliseconds. A line that cannot be read and that contains the
    id is erased, too.
    """
    return "\n".join(_erase_line(line, user, at) for line in votes.split("\n"))


def _erase_line(line: str, user: str, at: int) -> str:
    vote = _read_line(line)
    if isinstance(vote, Vote) and user in vote.user_ids:
        return ErasedVote(vote.event_id, at).to_json()
    if vote is None and user in line:
        return ErasedVote("", at).to_json()
    return line


def _read_line(line: str) -> VoteLine:
    try:
        if "erased_at" in _object(line):
            return ErasedVote.from_json(line)
        vote = Vote.from_json(line)
        # Another client may have written values of any type.
        texts = [vote.event_id, vote.answer, vote.record_mac, vote.seal, *vote.user_ids]
        if all(isinstance(text, str) for text in texts) and isinstance(vote.at, int | float):
            return vote
    except (ValueError, TypeError, RecursionError):
        return None
    return None


def _object(text: str) -> dict[str, Any]:
    data = json.loads(text)
    if not isinstance(data, dict):
        raise TypeError(f"a vote is an object, not {text!r}")
    return data
