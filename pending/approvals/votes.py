"""Vote: the yes or no of one person to an action of another person; and how votes are counted."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Literal

from sayso.channels.types import Conversation, digest
from sayso.pending.action import ActionSigner
from sayso.pending.approval_rule import ApprovalRule
from sayso.pending.record_json import fields_from_json, record_to_json
from sayso.pending.stored_action import StoredAction

#: The answer of a person.
VoteAnswer = Literal["yes", "no"]
#: How a person answered: by a tap on a button, or in words.
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
    """One answer of one person, sealed over exactly the action that was shown. Immutable.

    It is sent from the conversation of the person to the conversation of the action, and stored
    with the action there. The seal is a MAC over all other fields.
    """

    #: The id of the action that the vote is about.
    action_id: str
    #: The MAC of the action's record, which covers the arguments and the preview.
    record_mac: str
    answer: VoteAnswer
    form: VoteForm
    #: The account with which the person answered.
    channel: str
    user_id: str
    #: The id of the conversation in which the person answered, and its address.
    conversation: str
    chat: str
    thread: str
    #: The event id of the turn with the answer.
    event_id: str
    #: When the answer came in, in Unix seconds.
    at: float
    #: What the platform called the person, "" if unknown.
    user_name: str = ""
    #: Other ids of the same account.
    aliases: tuple[str, ...] = ()
    #: What the person wrote, "" for a tap.
    words: str = ""
    #: Why the person answered so, "" if they did not say.
    reason: str = ""
    #: The platform's id of the message that was tapped or quoted, "" for none.
    question_message_id: str = ""
    #: The id of the request that the person answered (`requests.py`).
    request_id: str = ""
    #: The name of the person (`KnownPerson.name`). "" until the vote is counted: the conversation
    #: of the action finds out who the person is.
    person: str = ""
    #: Digests of all names that the person has had (`KnownPerson.known_as`), () until the vote is
    #: counted.
    known_as: tuple[str, ...] = ()
    #: The name of the absent person in whose place the person answered, "" for nobody.
    stands_for: str = ""
    #: The seal over all other fields.
    seal: str = ""

    def sealed(self, signer: ActionSigner) -> Vote:
        """Return the vote with its seal."""
        return replace(self, seal=signer.sign(self._sealed_text))

    def is_genuine(self, signer: ActionSigner) -> bool:
        """Return whether the seal is valid: no field was changed since."""
        return signer.verify(self._sealed_text, self.seal)

    def is_about(self, stored: StoredAction) -> bool:
        """Return whether the vote is about this action with exactly this record."""
        return (self.action_id, self.record_mac) == (stored.action_id, stored.mac)

    @property
    def _sealed_text(self) -> str:
        """Return what the seal is over. It differs from the text of every other sealed record."""
        data = asdict(self)
        del data["seal"]
        return f"vote {json.dumps(data, sort_keys=True)}"

    @property
    def turn_event_id(self) -> str:
        """Return the event id of the turn that brings the vote to the conversation of the action."""
        return f"vote:{self.request_id}:{digest(self.event_id)}"

    @property
    def shown_name(self) -> str:
        """Return how the person is named to others: by the YAML, else by the platform.

        The name of an absent person in whose place the person answered follows in brackets.
        """
        name = self.person
        is_in_yaml = ":" not in name
        if not is_in_yaml:
            name = self.user_name or self.user_id
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
        return record_to_json(self)

    @classmethod
    def from_json(cls, text: str) -> Vote:
        """Read the result of `to_json`. Raises ValueError or TypeError on anything else."""
        data = fields_from_json(text, cls, name="a vote", other_types=_JSON_TYPES)
        for name in _LISTS:
            texts = tuple(data.get(name, ()))
            if not all(isinstance(text, str) for text in texts):
                raise TypeError(f"{name!r} of a vote is {texts!r}")
            data[name] = texts
        return cls(**data)


@dataclass(frozen=True, slots=True)
class Tally:
    """The votes that count, and what they decide."""

    #: What they decide: nothing yet, or the end of the question.
    state: Literal["open", "approved", "denied"]
    #: The votes for yes, the newest of each person, in the order in which they were given.
    yes: tuple[Vote, ...]
    #: The votes for no, in the same way.
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

    `votes`: the votes of people who may decide, each with its `person`, in the order in which they
    arrived. A vote may arrive after a later answer of the same person, from another conversation.

    The newest vote of each person counts. The first row that fits counts:

    | the votes                      | the action  |
    |--------------------------------|-------------|
    | at least `denials` are a no    | is denied   |
    | at least `need` are a yes      | is approved |
    | anything else                  | stays open  |
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
    """Return the last answer of each person, in the order in which these answers were given.

    An answer in the place of an absent person counts for both people, so that neither of them
    counts a second time.
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
    """Return the last vote of each person, in the order in which these votes were given.

    Two votes are of one person if the people of the votes have had a name in common at any time. So
    a person who joins accounts, answers, and separates the accounts again counts once.
    """
    newest: list[tuple[frozenset[str], Vote]] = []
    for vote in sorted(votes, key=lambda vote: vote.at):
        names = frozenset({digest(vote.person), *vote.known_as})
        kept: list[tuple[frozenset[str], Vote]] = []
        for earlier_names, earlier in newest:
            if names.isdisjoint(earlier_names):
                kept.append((earlier_names, earlier))
            else:
                # The person of the earlier vote is the person of this one.
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


def genuine_votes(stored: StoredAction, signer: ActionSigner) -> Sequence[Vote]:
    """Return the stored votes that the bot sealed and counted, about exactly this record."""
    # A vote without a person is stored, and not counted yet.
    return [
        vote
        for vote in votes_from_lines(stored.votes_text)
        if vote.person and vote.is_about(stored) and vote.is_genuine(signer)
    ]


def votes_for(stored: StoredAction, answer: VoteAnswer) -> Sequence[Vote]:
    """Return the stored votes of the people whose last answer is this one, () for none."""
    votes = votes_from_lines(stored.votes_text)
    return [each for each in last_answers(votes) if each.answer == answer]


def names_of_votes(stored: StoredAction, answer: VoteAnswer) -> str:
    """Return the names (`KnownPerson.name`) of these people, "" for nobody."""
    return ", ".join(each.person for each in votes_for(stored, answer))
