"""TurnContext: a turn with everything that is known about it; TurnAnswer: the answer to one.

A *turn* is one thing that a person did: a message, a tap, a filled-in form. A *continuation* is the
one kind of turn that no person sent: in it the agent goes on after an action was decided.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sayso.agent.channel.long_texts import LongTexts
from sayso.agent.channel.turn_journal import RunRecord, TurnJournal
from sayso.agent.channel.user_messages import user_message
from sayso.agent.memory.conversation import ConversationMemory
from sayso.agent.messages import Message, Role
from sayso.agent.result import AgentResult
from sayso.agent.run.long_results import shorten_for_history
from sayso.channels.i18n.texts import Texts
from sayso.channels.types import Media, Reply, Turn
from sayso.pending.action import PendingAction
from sayso.pending.call_context import ChannelRun
from sayso.pending.standing_yes import standing_event_id
from sayso.pending.stored_action import OPEN_STATES, WAITING_STATES, StoredAction
from sayso.pending.turn_changes import SettledAnswer, Timer, TurnChange, TurnReply
from sayso.pending.turns import CHOICE_KIND, Lease, OnStep, StreamListener

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TurnContext:
    """A turn and everything that is known about it. Lives as long as one attempt at the turn.

    All times are Unix seconds. A program may also answer turns without a worker (`DirectTurns`):
    what only a worker knows has a default.
    """

    turn: Turn
    #: The id of the scope, which is this person in this conversation (`Scope.id`).
    scope_id: str
    #: The person's action: the one that waits for their yes or is carried out, or the last one, if
    #: it has just ended otherwise than by their answer.
    open_action: StoredAction | None
    #: The action that the turn names: that of the tapped button, or the one that a continuation
    #: goes on with.
    named_action: StoredAction | None
    #: The history of the person in this conversation. What the turn adds to it is stored with the
    #: other changes of the turn.
    memory: ConversationMemory
    #: When the turn came in. Whether a yes is in time is judged by this, not by the time at which a
    #: worker gets to it.
    received_at: float
    #: The texts in the person's language.
    texts: Texts
    #: What tools, roles and proposals know about the person.
    channel_run: ChannelRun
    #: The worker's right to work on the conversation; None without a worker.
    lease: Lease | None = None
    #: The number of the turn in its conversation, from 1; 0 without a worker, where a turn comes
    #: after all others.
    seq: int = 0
    #: Whether the caller gets only text, without buttons and files, as from `ask_channel`.
    returns_text: bool = False
    #: The timers that are set in the conversation, such as reminders, of all persons.
    timers: tuple[Timer, ...] = ()
    #: Where the run records what it has done, for the next attempt or for the history.
    journal: TurnJournal | RunRecord | None = None
    #: Receives the answer's text while it arrives.
    stream_listener: StreamListener | None = None
    #: Receives which tools the turn calls, and how each call ends.
    on_step: OnStep | None = None
    #: Stores and reads the long texts of the history. None without a worker: then the history stays
    #: in this process.
    long_texts: LongTexts | None = None
    #: When the store went on after a loss of data, 0.0 if not in the last day.
    lost_at: float = 0.0
    #: Whether the person was told of the loss, in answer to a yes or a no.
    is_loss_told: bool = False
    #: The person's last yes or no, while its outcome is the last thing that the bot has said. The
    #: same answer again needs no reply then.
    last_answer: SettledAnswer | None = None
    #: Whether no other turn of the conversation waits behind this one.
    is_last_turn: bool = True
    #: Whether a model summarizes what the memory removes. Only a run of the agent asks that model,
    #: so any other turn removes nothing.
    summarizes: bool = False

    def remember(self, messages: Sequence[Message]) -> None:
        """Add messages to the history, in a turn in which no model was asked."""
        self.memory.add_many(shorten_for_history(messages), trims=not self.summarizes)

    @property
    def settled_action(self) -> StoredAction | None:
        """The action that an earlier attempt at this turn has decided and ended; None without one.

        If that attempt claimed or started the action and did not end it, the action is still open:
        it is carried on, and this is None.
        """
        for stored in (self.open_action, self.named_action):
            if stored is None or stored.decided_by_event != self.turn.event_id:
                continue
            if stored.state not in OPEN_STATES:
                return stored
        return None

    @property
    def waiting_action(self) -> StoredAction | None:
        """The action that waits for this person's yes; None if none waits."""
        if self.open_action and self.open_action.state in WAITING_STATES:
            return self.open_action
        return None

    @property
    def memory_scope(self) -> str:
        """Whose knowledge the turn reads and writes: that of this person in this conversation."""
        return f"{self.turn.conversation.id}:{self.scope_id}"


@dataclass(frozen=True, slots=True)
class TurnAnswer:
    """The answer to a turn: everything that it changes, to be stored at once."""

    change: TurnChange
    #: The result of the agent; None if it did not run.
    result: AgentResult | None = None
    #: If the person has changed the values of a question: the actions before the change, by the ids
    #: of those after it. They are needed to take the change back if it cannot be stored.
    predecessors: Mapping[str, PendingAction] = field(default_factory=dict)

    def with_changes(self, **fields: Any) -> TurnAnswer:
        """Return the answer with these fields of its `TurnChange` replaced."""
        return replace(self, change=replace(self.change, **fields))

    def marked_about(self, action: StoredAction | None) -> TurnAnswer:
        """Return the answer with a mark for `sayso trace`: the turn was about this action.

        An offer of choices is no action that can be traced, so it leaves the answer unchanged.
        """
        if action and action.action.kind != CHOICE_KIND:
            return self.with_changes(about=action.action_id)
        return self


#: The answer to a message that repeats one which was answered: nothing is sent, and the message is
#: not added to the history.
NO_ANSWER = TurnAnswer(TurnChange(ended="repeated"))


def fixed_answer(
    context: TurnContext, text: str, files: Sequence[Media] = (), *, for_history: str = ""
) -> TurnAnswer:
    """Return an answer that no model wrote, and add the message and the answer to the history.

    `files` are sent after the text. `for_history`: the text that the history gets instead, "" for
    the same one.
    """
    add_exchange(context, for_history or text)
    replies = (TurnReply(Reply(text)), *(TurnReply(Reply(media=media)) for media in files))
    return TurnAnswer(TurnChange(replies=replies))


def text_change(text: str, cause: str = "") -> TurnChange:
    """Return the change of a turn whose answer is a text; with "" nothing is sent.

    `cause`: why there is no answer of the model, for logs and operators; "" if there is one.
    """
    if not text:
        return TurnChange()
    return TurnChange(replies=(TurnReply(Reply(text, cause=cause)),))


def paragraphs(texts: Iterable[str]) -> str:
    """Return one text with these texts as its paragraphs. Empty ones are left out."""
    return "\n\n".join(filter(None, texts))


def about_question(stored: StoredAction, answer: TurnAnswer) -> TurnAnswer:
    """Return the answer, with its replies as repetitions of the question of an action.

    A message that quotes such a reply then counts as one that quotes the question.
    """
    replies = tuple(
        TurnReply.about_question(turn_reply.reply, stored.action_id)
        for turn_reply in answer.change.replies
    )
    return answer.with_changes(replies=replies)


def add_exchange(context: TurnContext, answer: str, between: Sequence[Message] = ()) -> None:
    """Add to the history what the user wrote or tapped, the messages `between`, and the answer.

    A turn that the bot made itself, such as a continuation, has no message of a user.
    """
    messages = [*between, Message(Role.ASSISTANT, answer)]
    if context.turn.is_of_sender:
        messages.insert(0, user_message(context.turn))
    context.remember(messages)


def continuation_turn(turn: Turn, pending_action_id: str, *, tells_outcome: bool) -> Turn:
    """Return the turn in which the agent goes on after `turn` has decided an action.

    Its event id depends only on the action, so that no action has two continuations. It has nothing
    of the person's message. `tells_outcome`: the deciding turn sends no outcome, so this one does.
    """
    turn = _own_turn(turn, f"after:{pending_action_id}", pending_action_id)
    return replace(turn, kind="continuation", tells_outcome=tells_outcome)


def standing_turn(turn: Turn, pending_action_id: str) -> Turn:
    """Return the turn that runs an action which a standing yes covers.

    `turn` has proposed the action. The event id depends only on the action, so that no action has
    two such turns.
    """
    turn = _own_turn(turn, standing_event_id(pending_action_id), pending_action_id)
    return replace(turn, kind="standing")


def _own_turn(turn: Turn, event_id: str, pending_action_id: str) -> Turn:
    """Return a turn that the bot makes itself for an action, without the message of `turn`."""
    return replace(
        turn,
        event_id=event_id,
        continues=pending_action_id,
        tells_outcome=False,
        asks_model=True,
        text="",
        tap=None,
        media=(),
        content="",
        quoted="",
        notes=(),
        background=(),
        group="",
        replied_to="",
        replied_to_button="",
        written_at=0.0,
        request_event="",
    )
