"""Verdicts: compares what each turn decided with what it had to decide by the documented rules."""

from __future__ import annotations

from collections.abc import Sequence

from sayso.channels.i18n.texts import texts_for
from sayso.channels.markdown.outcome_signs import without_own_sign
from tests.model.wire import Peek
from tests.model.world import Event, Pressable, Proposal, World

#: The groups of states that an action can have after a turn.
_WAITING = frozenset({"armed", "shown"})
_OFF = frozenset({"cancelled", "expired", "superseded"})
_RAN = frozenset({"done", "failed", "unknown"})
_BEGUN = frozenset({"claimed", "started", "done", "unknown"})
_ENGLISH = texts_for("en")


class Verdicts:
    """The confirmation rules as the documents state them, written independently of the code."""

    def __init__(self, world: World, peek: Peek) -> None:
        self._world = world
        self._peek = peek

    def claimed(self, pid: str, conversation: str, act: str) -> None:
        """Check that a claimed action was rightly confirmed."""
        world, proposal = self._world, self._world.proposals.get(pid)
        event = world.events.get((conversation, act))
        if proposal is None or event is None:
            world.broke("only a proposal is claimed, by a turn", pid, act)
            return
        head = world.head(proposal)
        if proposal is not head:
            if (head.fate, head.by) != ("claimed", act) or head.ended or proposal.tampered:
                world.broke(
                    "a step runs inside its plan only, as shown",
                    proposal.preview,
                    head.fate,
                    head.ended,
                )
        elif head.fate != "claimed":
            self._lawful(head, event)
            head.fate, head.by = "claimed", act
        elif head.by != act:
            world.broke("an action is claimed once", head.preview, head.by, act)

    def turn(self, event: Event, replies: Sequence[str]) -> None:
        """Check what a committed turn decided."""
        world, conversation = self._world, event.turn.conversation.id
        target = self._target(event)
        waiting = world.waiting(conversation)
        watched = [*waiting, target] if target and target not in waiting else waiting
        states = self._peek.states(conversation, [each.pid for each in watched])
        apology = any(text in (_ENGLISH.too_long(), _ENGLISH.broken()) for text in replies)
        for proposal, state in zip(watched, states, strict=True):
            if proposal is target:
                self._decided(event, proposal, state, replies, apology=apology)
            elif state not in _WAITING:
                world.broke(
                    "a turn decides on nothing but its own",
                    event.turn.event_id,
                    proposal.preview,
                    state,
                )

    def undelivered(self, conversation: str, text: str) -> None:
        """Check that a preview is over when its reply, or half of it, was given up."""
        unseen = [each for each in self._world.waiting(conversation) if not each.closes]
        for proposal, state in zip(unseen, self._states(conversation, unseen), strict=True):
            if state == "expired":
                proposal.fate = "closed"
            elif state in _WAITING and proposal.preview in text:
                self._world.broke("nobody is asked half a question", proposal.preview, state)

    def _states(self, conversation: str, proposals: Sequence[Proposal]) -> list[str]:
        return self._peek.states(conversation, [each.pid for each in proposals])

    def _lawful(self, proposal: Proposal, event: Event) -> None:
        allowed = self._allowed(event, proposal)
        is_plain = not self._button(event) and not event.code
        if is_plain and self._world.is_followed(proposal, event.tick):
            self._world.broke(
                "a plain yes answers the last message", proposal.preview, event.turn.text
            )
        if (
            proposal is not self._target(event)
            or proposal.fate != "open"
            or not allowed.issuperset(_RAN)
            or proposal.tampered
        ):
            facts = (
                proposal.preview,
                proposal.fate,
                event.turn.text,
                sorted(allowed),
                proposal.tampered,
            )
            self._world.broke("only its own person's timely yes confirms what was shown", *facts)

    def _target(self, event: Event) -> Proposal | None:
        """Return the action that a turn may decide: its own button's, or the person's last question."""
        button = self._button(event)
        if button is not None:
            return self._world.proposals[button.pid]
        if event.turn.tap or event.turn.continues:
            return None
        return self._world.proposals.get(
            self._world.live.get((event.turn.conversation.id, event.turn.user_id), "")
        )

    def _button(self, event: Event) -> Pressable | None:
        button = self._world.buttons.get(event.turn.tap.data) if event.turn.tap else None
        genuine = button and (button.user, button.conversation) == (
            event.turn.user_id,
            event.turn.conversation.id,
        )
        return button if genuine else None

    def _allowed(self, event: Event, proposal: Proposal) -> frozenset[str]:
        """Return the states to which this turn may bring an open action."""
        button = self._button(event)
        says = button.intent if button else event.says
        late = bool(proposal.closes) and event.at >= proposal.closes
        if (
            says == "ignore"
        ):  # "ignore" decides nothing; processed too late, it finds the action expired
            return (
                _WAITING | _OFF
                if proposal.closes and self._world.now >= proposal.closes
                else _WAITING
            )
        if says == "cancel":
            return _OFF
        if says == "other" and self._world.goes_on and self._world.repeats_request(event):
            return _WAITING | _OFF  # only a paused run knows which request it answers
        if says == "other" or (event.code and event.code != proposal.code and not proposal.code):
            return _OFF
        if not button and event.code != proposal.code:
            return _OFF if late else _WAITING
        early = not proposal.closes or (not button and event.seq <= proposal.seen)
        if early or event.tick < proposal.arrived:
            return _WAITING
        if late:
            return _OFF
        if not button and not event.code and self._world.may_be_followed(proposal):
            return (
                _WAITING | _RAN
            )  # the bot asks which question is meant, unless it has just repeated it
        return _RAN

    def _decided(
        self, event: Event, proposal: Proposal, state: str, replies: Sequence[str], *, apology: bool
    ) -> None:  # fmt: skip
        world, fate = self._world, proposal.fate
        if fate == "open":
            allowed = self._allowed(event, proposal)
            if allowed.issuperset(_RAN):  # a confirmed action would be claimed by now
                allowed -= _RAN
        elif proposal.by == event.turn.event_id:
            allowed = _RAN
        else:
            if not apology:
                self._twin(event, proposal, state, replies)
            return
        if apology:
            proposal.vague = state not in _WAITING
            allowed = _WAITING | _OFF | _RAN
        elif proposal.tampered:
            allowed = _WAITING | _OFF | (_RAN if fate == "claimed" else frozenset())
        if state not in allowed:
            facts = (event.turn.event_id, proposal.preview, fate, state, sorted(allowed))
            world.broke("a turn decides what its words say", *facts)
        if state in _OFF:
            proposal.fate = "closed"
        if state not in _WAITING:
            proposal.told.append(replies[0] if replies else "")

    def _undone(self, conversation: str, undos: Sequence[Proposal]) -> list[Proposal]:
        """Return the actions that these undos took back, or may have."""
        states = self._states(conversation, undos)
        begun = [undo for undo, state in zip(undos, states, strict=True) if state in _BEGUN]
        return [self._world.proposals[undo.undoes] for undo in begun]

    def _twin(self, event: Event, proposal: Proposal, state: str, replies: Sequence[str]) -> None:
        """Check that a second tap on what is done hears exactly that, and on anything else the first outcome.

        For a plan that did not end well, it is what is known of the steps by now. What was undone is not called done.
        """
        world = self._world
        parts = [world.proposals[pid] for pid in proposal.steps or (proposal.pid,)]
        undos = [undo for part in parts if (undo := world.undo_of(part.pid))]
        changed = any(each.tampered for each in (proposal, *parts, *undos))
        if event.turn.tap is None or changed:
            return
        words = texts_for(proposal.language)
        heard = without_own_sign(replies[0])
        undone = self._undone(proposal.conversation, undos)
        for part in undone:
            if not any(phrase in heard for phrase, _ in part.undo_phrases):
                world.broke("twins hear what was undone", part.preview, heard)
        if state == "done":
            if not undone and heard != words.already_done(proposal.preview):
                world.broke("twins hear that it is done", proposal.preview, heard)
            return
        if proposal.vague or proposal.told_later:
            return
        ends = (
            words.expired(proposal.preview),
            words.cancelled(proposal.preview),
            words.dropped(proposal.preview),
        )
        steps = [world.proposals[pid].phrases for pid in proposal.steps]
        known = (
            any(heard in told for told in proposal.told)
            or (proposal.fate == "closed" and heard in ends)
            or (
                bool(steps)
                and all(any(phrase in heard for phrase, _ in phrases) for phrases in steps)
            )
        )
        if not known:
            world.broke("twins hear the first outcome", proposal.preview, heard, proposal.told)
