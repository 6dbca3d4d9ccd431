"""VoteJudge: checks each store call, effect and delivery against what people really answered."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from sayso.channels.i18n.texts import texts_for
from sayso.channels.types import Delivery, Turn
from sayso.pending.action import PendingAction, split_button_token
from sayso.pending.approvals.requests import ANYONE, codes_in
from sayso.pending.forwarding import ForwardedQuestion, ForwardedReply, ForwardedTurn
from sayso.pending.repository import ActionDecision, ActionResult, Claim
from sayso.pending.stored_action import StoredAction
from sayso.pending.turn_changes import TurnChange
from sayso.pending.turns import Lease, QueuedReply, QueuedTurn
from sayso.workers.sender import GivenUp, Sent
from tests.model.bot import Worker
from tests.model.judge import Judge
from tests.model.votes.facts import (
    GROUP,
    HOME,
    RULES,
    Asked,
    Given,
    Office,
    Request,
    said_by,
)
from tests.model.wire import Peek
from tests.model.world import Event, result_of, shown

if TYPE_CHECKING:
    from tests.model.votes.office import Team

_ENGLISH = texts_for("en")
_WAITING = frozenset({"armed", "shown"})
_OFF = frozenset({"cancelled", "expired", "superseded"})
#: What the asker can be told of an action that was approved.
_RAN = frozenset({"done", "failed", "unknown"})


class VoteJudge(Judge):
    """Watches one example, and adds broken promises to the world's list."""

    _world: Office

    def __init__(self, world: Office, peek: Peek, team: Team) -> None:
        super().__init__(world, peek)
        self._team = team
        self._committed: set[tuple[str, int]] = set()
        #: What each forwarded thing became, by its id.
        self._forwarded: dict[str, str] = {}

    def accepted(self, turn: Turn, outcome: str, seq: int) -> None:
        """Check the mailbox's answer to an event, and note the answer that it gives to a request."""
        world, key = self._world, (turn.conversation.id, turn.event_id)
        known = world.events.get(key)
        if outcome == "new" and known is None:
            event = Event(turn, seq, world.now, world.tick())
            world.events[key] = world.by_seq[turn.conversation.id, seq] = event
            given = self._given(turn, world.now)
            if given:
                world.given[key] = given
        elif outcome == "new" or (outcome == "duplicate" and (known is None or known.seq != seq)):
            world.broke("an event is accepted once", turn.event_id, outcome, seq)

    def _given(self, turn: Turn, at: int) -> Given | None:
        """Return the answer that a turn gives to a request by the rules of the documents.

        `at`: when the turn came in, in Unix milliseconds.
        """
        world = self._world
        if turn.tap:
            for request in world.requests.values():
                is_own = request.place == turn.conversation
                is_own = is_own and request.person in (ANYONE, turn.user_id)
                if is_own and turn.tap.data in request.buttons:
                    is_yes = turn.tap.data == request.buttons[0]
                    return said_by(turn, request, "yes" if is_yes else "no", at)
            return None
        word = turn.text.partition(" ")[0]
        codes = codes_in(turn.text)
        for request in world.requests.values():
            is_own = request.person == turn.user_id or request.place == turn.conversation
            is_own = is_own and request.person in (ANYONE, turn.user_id)
            if is_own and request.code in codes and word in ("yes", "no"):
                return said_by(turn, request, "yes" if word == "yes" else "no", at)
        return None

    def effect(self, action: PendingAction) -> str:
        """Check and count an effect of a tool."""
        world = self._world
        asked = world.asked.get(action.pending_action_id)
        if asked is None:
            world.broke("an effect is one that was proposed", action.pending_action_id)
            return ""
        world.tick()
        world.counts["effects"] += 1
        world.effects[asked.action_id] += 1
        if world.effects[asked.action_id] > 1:
            world.broke("an effect takes place once", asked.preview)
        if shown(action) != (asked.kind, asked.args, asked.preview):
            world.broke("what runs is what was shown", shown(action), asked.preview)
        if asked.fate != "approved" or "nothing" in asked.told:
            world.broke("only what others agreed to runs", asked.preview, asked.fate, asked.told)
        return result_of(asked.kind, asked.args)

    def failure(self, action: PendingAction) -> None:
        """Note that a tool raised before it did anything."""
        self._world.failures[action.pending_action_id] += 1

    def _is_next(self, number: int, last: int) -> bool:
        """Return whether a reply may be sent: between two there may be what goes elsewhere."""
        return number >= last

    def said(self, delivery: Delivery, *, arrived: bool) -> None:
        """Note a delivery that the platform accepted, or refused for good, and check that it is true."""
        world, (conversation, _, number) = self._world, delivery.id.rpartition("#")
        world.tick()
        reply = delivery.reply
        world.sent[conversation, int(number)] = reply
        if arrived:
            for button in reply.buttons:
                self._shown(button.data, [each.data for each in reply.buttons], delivery.id)
        if conversation == HOME.id:
            self._told_asker(reply.text)
            if not arrived:
                self._refused(delivery)
        for request in world.requests.values():
            if request.message and request.message == reply.edits:
                request.is_closed = True
                self._told_decider(world.asked[request.action_id], reply.text)

    def _shown(self, token: str, all_tokens: list[str], message: str) -> None:
        """Note that the buttons of a notice or a request can be tapped from now on."""
        parts = split_button_token(token)
        request = self._world.requests.get(parts[0]) if parts else None
        asked = self._world.asked.get(parts[0]) if parts else None
        if request:
            request.buttons = tuple(all_tokens)
            request.message = message
        if asked:
            asked.withdraw = token

    def _refused(self, delivery: Delivery) -> None:
        """Note a notice that the asker never gets: nothing else is said of its action."""
        for button in delivery.reply.buttons:
            parts = split_button_token(button.data)
            if parts and parts[0] in self._world.asked:
                self._world.asked[parts[0]].told.append("not asked")

    def _told_asker(self, text: str) -> None:
        """Check what the asker reads about an action."""
        world = self._world
        for asked in world.asked.values():
            if asked.preview not in text and result_of(asked.kind, asked.args) not in text:
                continue
            effects = world.effects[asked.action_id]
            if (
                result_of(asked.kind, asked.args) in text
                or _ENGLISH.done(asked.preview, "") in text
            ):
                asked.told.append("done")
                if not effects:
                    world.broke("nobody is told done without an effect", asked.preview)
            elif _ENGLISH.failed(asked.preview) in text:
                asked.told.append("failed")
                if effects:
                    world.broke("nobody is told of a failure after an effect", asked.preview)
            elif _ENGLISH.unknown(asked.preview) in text:
                asked.told.append("unknown")
            elif "nothing was done" in text.lower():
                asked.told.append("nothing")
                if effects:
                    world.broke("nobody is told that nothing was done after an effect", text)

    def _told_decider(self, asked: Asked, text: str) -> None:
        """Check what takes the place of a request."""
        world = self._world
        is_agreed = "Agreed by" in text
        is_false = is_agreed and asked.fate != "approved"
        if is_false or (world.effects[asked.action_id] and not is_agreed):
            world.broke("a closed request tells the truth", asked.preview, asked.fate, text)

    def _commit(
        self,
        lease: Lease,
        queued: QueuedTurn,
        change: TurnChange,
        *,
        answer: Any,
        let_go: bool = False,
    ) -> None:
        if let_go:
            self._release(lease, answer=answer)
        place = (lease.conversation, queued.seq)
        if place in self._committed:
            return
        self._committed.add(place)
        world = self._world
        event = world.by_seq.get(place)
        if event:
            event.committed = True
            key = (lease.conversation, queued.turn.event_id)
            # A person may name a code that others know, before the own request has come.
            given = world.given.get(key) or self._given(event.turn, event.at)
            if given and any(isinstance(each, ForwardedTurn) for each in change.forwards):
                world.given[key] = given
            if key in world.given:
                self._answered(queued, change)
        self._note_asked(change)
        if queued.turn.kind == "vote":
            self._vote(queued, change)
        self._note_ends(queued)

    def _note_asked(self, change: TurnChange) -> None:
        """Note the actions and requests that a turn has stored."""
        world = self._world
        for action in change.new_actions:
            record = json.loads(action.record)
            world.asked[action.action_id] = Asked(
                action.action_id,
                RULES[action.kind],
                action.kind,
                record["args"],
                record["preview"],
                action.mac,
            )
            world.counts["asked"] += 1
        for forward in change.forwards:
            if isinstance(forward, ForwardedQuestion):
                record = json.loads(forward.action.record)
                args = record["args"]
                world.requests[forward.action.action_id] = Request(
                    forward.action.action_id,
                    args["action_id"],
                    forward.to,
                    record["user_id"],
                    args["code"],
                    args["record_mac"],
                )

    def _answered(self, queued: QueuedTurn, change: TurnChange) -> None:
        """Check that an answer to a request becomes a vote, or is answered at once."""
        is_vote = any(isinstance(each, ForwardedTurn) for each in change.forwards)
        is_told = any(each.reply.text for each in change.replies)
        self._world.counts["votes"] += is_vote
        if not (is_vote or is_told):
            self._world.broke("an answer to a request is not lost", queued.turn)

    def _vote(self, queued: QueuedTurn, change: TurnChange) -> None:
        """Check what a vote led to: what a plain count of all answers says, if that is certain."""
        world = self._world
        vote = json.loads(queued.turn.request_event)
        given = world.given.get((vote["conversation"], vote["event_id"]))
        asked = world.asked.get(vote["action_id"])
        if given is None or asked is None:
            world.broke("a vote is an answer of a person", vote)
            return
        told = [each for each in change.forwards if not isinstance(each, ForwardedQuestion)]
        if not any(_place_of(each) == given.conversation for each in told):
            world.broke("a vote is answered where it was given", given, change.forwards)
        if asked.fate == "off" or asked.is_tampered or asked.by not in ("", queued.turn.event_id):
            return
        texts = [each.reply.text for each in told if isinstance(each, ForwardedReply)]
        if _ENGLISH.broken() in texts or _ENGLISH.deciders_unknown() in texts:
            return
        expected = self._expected(asked, given)
        (state,) = self._peek.states(HOME.id, [asked.action_id])
        actual = "approved" if asked.fate == "approved" else "open" if state == "shown" else state
        if expected and actual != expected:
            world.broke("votes decide as they were given", asked.preview, expected, actual, given)
        if expected == "open" and given in asked.votes:
            last = world.last_answers(asked)
            agreed = sum(
                each.answer == "yes" and self._may_decide(each, asked) == {True}
                for each in last.values()
            )
            if not any(f"{agreed} of {asked.rule.need} agree" in text for text in texts):
                world.broke("a counted vote is told so", asked.preview, agreed, texts)

    def _expected(self, asked: Asked, given: Given) -> str:
        """Return what a vote must lead to, "" if roles changed meanwhile."""
        if given.at >= asked.closes:
            return "expired"
        own = self._may_decide(given, asked)
        last = self._world.last_answers(asked)
        decides = {person: self._may_decide(each, asked) for person, each in last.items()}
        if len(own) > 1 or any(len(each) > 1 for each in decides.values()):
            return ""
        if own == {False}:
            return "open"
        if given not in asked.votes:
            self._world.broke("a vote is stored before it counts", asked.preview, given)
        answers = [each.answer for name, each in last.items() if decides[name] == {True}]
        if answers.count("no") >= asked.rule.denials:
            return "cancelled"
        return "approved" if answers.count("yes") >= asked.rule.need else "open"

    def _may_decide(self, given: Given, asked: Asked) -> set[bool]:
        """Return whether a person may decide, by all roles that they had during this turn."""
        rule = asked.rule
        person = given.person
        if person == "ana" or given.record_mac != asked.mac:
            return {False}
        match rule.by.kind:
            case "role":
                return self._team.was_manager(person, Worker.at_work.began)
            case "anyone_else":
                return {given.conversation == GROUP.id}
        if person in rule.by.names:
            return {True}
        if rule.escalation is None or person not in rule.escalation.by.names:
            return {False}
        was_asked = any(
            each.action_id == asked.action_id and each.person == person
            for each in self._world.requests.values()
        )
        waited = given.at - (asked.closes - rule.within_seconds * 1000)
        return {was_asked or waited >= rule.escalation.after_seconds * 1000}

    def _note_ends(self, queued: QueuedTurn) -> None:
        """Note which actions are over, and check that this turn may end them."""
        world = self._world
        waiting = [each for each in world.asked.values() if each.fate == "open"]
        states = self._peek.states(HOME.id, [each.action_id for each in waiting])
        for asked, state in zip(waiting, states, strict=True):
            if state in _WAITING:
                continue
            if state not in _OFF:
                world.broke("what runs was claimed", asked.preview, state)
            if not self._may_end(asked, queued, state):
                world.broke("a turn ends only what it may", asked.preview, state, queued.turn)
            asked.fate = "off"

    def _may_end(self, asked: Asked, queued: QueuedTurn, state: str) -> bool:
        """Return whether a turn may end an action without its effect."""
        turn = queued.turn
        world = self._world
        match turn.kind:
            case "vote":
                return json.loads(turn.request_event)["action_id"] == asked.action_id
            case "request_timer":
                is_late = bool(asked.closes) and world.now >= asked.closes
                return is_late or turn.request_event.startswith("undelivered:")
        if asked.is_tampered or state == "expired":
            return True
        is_withdrawn = bool(turn.tap) and turn.tap.data == asked.withdraw
        return turn.conversation == HOME and (is_withdrawn or turn.text == "/reset")

    def _claim(self, claim: Claim, stored: StoredAction, *, answer: Any) -> None:
        """Check that enough people agreed to exactly this action when it is claimed."""
        world = self._world
        if answer[0] != "mine":
            return
        asked = world.asked[claim.action_id]
        if asked.fate == "approved":
            if asked.by != claim.decided_by_event:
                world.broke("an action is claimed once", asked.preview, asked.by)
            return
        last = [each for each in world.last_answers(asked).values() if each.at < asked.closes]
        agreed = [
            each.person
            for each in last
            if each.answer == "yes" and True in self._may_decide(each, asked)
        ]
        refused = [
            each.person
            for each in last
            if each.answer == "no" and self._may_decide(each, asked) == {True}
        ]
        if asked.fate == "off" or asked.is_tampered or len(agreed) < asked.rule.need:
            facts = (asked.preview, asked.fate, asked.is_tampered, agreed, asked.votes)
            world.broke("only enough different people let an action run", *facts)
        if len(refused) >= asked.rule.denials:
            world.broke("a no that decides is final", asked.preview, refused)
        asked.fate = "approved"
        asked.by = claim.decided_by_event

    def _change(self, _conversation: str, change: TurnChange, *, answer: Any) -> None:
        """Note a vote that was stored."""
        if change.request_change and change.request_change.vote:
            self._store_vote(change.request_change.vote.to_json())

    def _store_vote(self, line: str) -> None:
        world = self._world
        vote = json.loads(line)
        given = world.given.get((vote["conversation"], vote["event_id"]))
        asked = world.asked[vote["action_id"]]
        if given is None or given.action_id != asked.action_id:
            world.broke("a stored vote is an answer of a person", vote)
            return
        facts = (vote["answer"], vote["record_mac"], round(vote["at"] * 1000))
        if facts != (given.answer, given.record_mac, given.at):
            world.broke("a stored vote is what its person answered", vote, given)
        if given not in asked.votes:
            asked.votes.append(given)

    def _forward(self, delivery: Delivery, *, answer: Any) -> None:
        self._arrives_once(delivery.id, answer)

    def _forward_entry(self, delivery_id: str, _entry: Any, *, answer: Any) -> None:
        self._arrives_once(delivery_id, answer)

    def _arrives_once(self, delivery_id: str, answer: str) -> None:
        """Check that what is forwarded again becomes nothing new."""
        if self._forwarded.setdefault(delivery_id, answer) != answer:
            self._world.broke("what is forwarded arrives once", delivery_id, answer)

    def _finish(self, claim: Claim, attempt: str, ending: ActionResult, *, answer: Any) -> None:
        """Nothing to note: `effect` and `said` check what people are told."""

    def _decide(self, decision: ActionDecision, *, answer: Any) -> None:
        """Nothing to note."""

    def _mark_delivered(
        self,
        lease: Lease,
        reply: QueuedReply,
        result: Sent | GivenUp,
        *,
        answer: Any,
        let_go: bool = False,
    ) -> None:
        """Open the time to decide when the asker was told."""
        if let_go:
            self._release(lease, answer=answer)
        world = self._world
        if lease.conversation != HOME.id:
            return
        for asked in world.asked.values():
            if asked.fate != "open":
                continue
            (state,) = self._peek.states(HOME.id, [asked.action_id])
            if state == "shown" and not asked.closes:
                asked.closes = world.now + round(asked.rule.within_seconds * 1000)
            if state == "expired":
                asked.fate = "off"


def _place_of(forward: Any) -> str:
    """Return the id of the conversation to which something is forwarded."""
    return str(forward.to.id)


def conclude(world: Office, peek: Peek) -> None:
    """Check what must be true after the faults have stopped, all work is done and all time is over."""
    for event in world.events.values():
        if not event.committed:
            world.broke("an accepted turn is processed", event.turn.event_id)
    for asked in world.asked.values():
        if asked.fate == "open":
            world.broke("an action is decided or ends", asked.preview)
        _check_told(world, asked)
    for request in world.requests.values():
        (state,) = peek.states(request.place.id, [request.request_id])
        if state in _WAITING or (request.message and not request.is_closed):
            asked = world.asked[request.action_id]
            world.broke("every request is closed in the end", asked.preview, request, state)


def _check_told(world: Office, asked: Asked) -> None:
    """Check that the asker knows how an action ended."""
    if asked.is_tampered:
        return
    if world.effects[asked.action_id] and not _RAN.intersection(asked.told):
        world.broke("an effect is told", asked.preview, asked.told)
    if not asked.told:
        world.broke("the asker is told how it ended", asked.preview, asked.fate)
