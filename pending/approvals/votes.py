"""Vote: the yes or no of one person to an action that others decide; and how votes are counted."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from typing import Literal

from sayso.channels.types import Conversation, digest
from sayso.pending.action import ActionSigner
from sayso.pending.approval_rule import ApprovalRule
from sayso.pending.stored_action import StoredAction

#: What a person answers.
VoteAnswer = Literal["yes", "no"]
#: How they answered: by a tap on a button, or in words.
VoteForm = Literal["tap", "words"]

#: The types of the fields of a vote in JSON. All other fields are texts.
_JSON_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "at": (float, int),
    "aliases": list,
    "known_as": list,
}
#: The fields that are lists of texts in JSON.
_LISTS = ("aliases", "known_as")


@dataclass(frozen=True, slots=True)
class Vote:
    """One answer of one person, sealed over exactly the action that they were shown.

    It travels from the conversation of the person to that of the action, and is stored with the
    action there.
    """

    #: The id of the action that it is about.
    action_id: str
    #: The MAC of the action's record. It stands for the arguments and the preview.
    record_mac: str
    answer: VoteAnswer
    form: VoteForm
    #: The account with which the person answered.
    channel: str
    user_id: str
    #: The id of the conversation in which they answered, and its address.
    conversation: str
    chat: str
    thread: str
    #: The event id of the answer.
    event_id: str
    #: When the answer came in, in Unix seconds.
    at: float
    #: What the platform called the person, "" if unknown.
    user_name: str = ""
    #: Other ids of the same account.
    aliases: tuple[str, ...] = ()
    #: What they wrote; "" for a tap.
    words: str = ""
    #: Why they answered so; "" if they did not say.
    reason: str = ""
    #: The platform's id of the message that was tapped or quoted, "" for none.
    message_id: str = ""
    #: The id of the request that they answered (`requests.py`).
    request_id: str = ""
    #: The name of the person (`KnownPerson.name`). "" until the conversation of the action has
    #: found out who they are.
    person: str = ""
    #: Digests of all names that the person had then (`KnownPerson.known_as`); () until then, too.
    known_as: tuple[str, ...] = ()
    #: The name of the person in whose place they answered, who was away; "" for nobody.
    stands_for: str = ""
    #: The seal over all other fields.
    seal: str = ""

    def sealed(self, signer: ActionSigner) -> Vote:
        """Return the vote with its seal."""
        return replace(self, seal=signer.sign(self._sealed_text))

    def is_genuine(self, signer: ActionSigner) -> bool:
        """Return whether nothing of the vote was changed since it was sealed."""
        return signer.verify(self._sealed_text, self.seal)

    def is_about(self, stored: StoredAction) -> bool:
        """Return whether the vote is about exactly this action, as its person was shown it."""
        return (self.action_id, self.record_mac) == (stored.action_id, stored.mac)

    @property
    def _sealed_text(self) -> str:
        """Return what the seal is over. It differs from the text of every signed record."""
        data = asdict(self)
        del data["seal"]
        return f"vote {json.dumps(data, sort_keys=True)}"

    @property
    def turn_event_id(self) -> str:
        """Return the event id of the turn that brings the vote to the conversation of the action."""
        return f"vote:{self.request_id}:{digest(self.event_id)}"

    @property
    def shown_name(self) -> str:
        """Return how the person is named: by the configured name, else as the platform does."""
        is_named = ":" not in self.person
        name = self.person if is_named else self.user_name or self.user_id
        if self.stands_for:
            return f"{name} ({self.stands_for})"
        return name

    @property
    def place(self) -> Conversation:
        """Return the conversation in which the person answered."""
        return Conversation(self.channel, self.chat, self.thread)

    @property
    def user_ids(self) -> tuple[str, ...]:
        """Return all ids of the account, the main one first."""
        return (self.user_id, *self.aliases)

    def to_json(self) -> str:
        """Return the vote as one line of JSON. Fields with their default are left out."""
        defaults = {each.name: each.default for each in fields(self)}
        data = {name: value for name, value in asdict(self).items() if value != defaults[name]}
        return json.dumps(data)

    @classmethod
    def from_json(cls, text: str) -> Vote:
        """Read the result of `to_json`. Raises ValueError or TypeError on anything else."""
        try:
            data = json.loads(text)
        except RecursionError:
            raise ValueError("a vote is nested too deeply") from None
        if not isinstance(data, dict):
            raise TypeError(f"a vote is an object, not {text!r}")
        for each in fields(cls):
            expected = _JSON_TYPES.get(each.name, str)
            if each.name in data and not isinstance(data[each.name], expected):
                raise TypeError(f"{each.name!r} of a vote is {data[each.name]!r}")
        for name in _LISTS:
            texts = tuple(data.get(name, ()))
            if not all(isinstance(text, str) for text in texts):
                raise TypeError(f"{name!r} of a vote is {texts!r}")
            data[name] = texts
        return cls(**data)


@dataclass(frozen=True, slots=True)
class Tally:
    """The votes that count, and what follows from them."""

    state: Literal["open", "approved", "denied"]
    #: The votes for yes and for no, the newest one of each person, in the order in which they were
    #: given.
    yes: tuple[Vote, ...]
    no: tuple[Vote, ...]

    @property
    def deciding(self) -> tuple[Vote, ...]:
        """Return the votes that decided; () while nothing is decided."""
        match self.state:
            case "approved":
                return self.yes
            case "denied":
                return self.no
        return ()


def tally(rule: ApprovalRule, votes: Iterable[Vote]) -> Tally:
    """Return what the votes decide. Reads no clock, changes nothing.

    `votes`: of people who may decide, in the order in which they arrived, each with its `person`. A
    vote from a slow conversation may arrive after a later answer of its person.

    | the people whose newest vote counts | the action |
    |-------------------------------------|------------|
    | at least `denials` said no          | is denied  |
    | at least `need` said yes            | is approved |
    | anything else                       | stays open |
    """
    counted = last_answers(votes)
    yes = tuple(each for each in counted if each.answer == "yes")
    no = tuple(each for each in counted if each.answer == "no")
    state: Literal["open", "approved", "denied"] = "open"
    if len(no) >= rule.denials:
        state = "denied"
    elif len(yes) >= rule.need:
        state = "approved"
    return Tally(state, yes, no)


def last_answers(votes: Iterable[Vote]) -> Sequence[Vote]:
    """Return the last answer of each person, in the order in which these were given.

    An answer in another person's place counts for both: neither of the two counts a second time.
    """
    newest: list[Vote] = []
    answered: set[str] = set()
    for vote in reversed(_newest_by_known_names(votes)):
        people = {vote.person, vote.stands_for} - {""}
        if answered.isdisjoint(people):
            newest.append(vote)
        answered |= people
    newest.reverse()
    return newest


def _newest_by_known_names(votes: Iterable[Vote]) -> Sequence[Vote]:
    """Return the last of all votes whose people have a name in common, now or then.

    A person may join accounts, answer, and separate them again.
    """
    newest: list[tuple[frozenset[str], Vote]] = []
    for vote in sorted(votes, key=lambda vote: vote.at):
        names = frozenset({digest(vote.person), *vote.known_as})
        kept: list[tuple[frozenset[str], Vote]] = []
        for earlier_names, earlier in newest:
            if names.isdisjoint(earlier_names):
                kept.append((earlier_names, earlier))
            else:
                # What is known of an earlier answer is true of the later ones, too.
                names |= earlier_names
        newest = [*kept, (names, vote)]
    return [vote for _, vote in newest]


def votes_from_lines(lines: str) -> Sequence[Vote]:
    """Read stored votes, one JSON object a line. A line that is no vote is left out."""
    votes: list[Vote] = []
    for line in lines.splitlines():
        with suppress(ValueError, TypeError):
            votes.append(Vote.from_json(line))
    return votes


def votes_for(stored: StoredAction, answer: VoteAnswer) -> Sequence[Vote]:
    """Return the votes with this answer, () for none.

    The newest answer of each person counts.
    """
    votes = votes_from_lines(stored.votes_text)
    return [each for each in last_answers(votes) if each.answer == answer]


def names_of_votes(stored: StoredAction, answer: VoteAnswer) -> str:
    """Return the names (`KnownPerson.name`) of the people who answered so, "" for nobody."""
    return ", ".join(each.person for each in votes_for(stored, answer))
