"""MessageStory: what happened to one message, and the sentences that `sayso trace` prints of it.

A story has the turn of the message, its replies, the pending actions that the turn asked about, and
the later turns that answered these questions. Of an action that other people decide, it has what
these people were asked in their own conversations, and their answers. `answers` turns a story into
sentences: why a user read something twice, why an answer is missing, who confirmed an action. A
`Tracer` builds stories; nothing here reads Redis or a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sayso.infra.terminal import utc_time
from sayso.pending.approvals.endings import RequestEnd
from sayso.pending.audit.entries import VOTED
from sayso.pending.stored_action import EXECUTED_STATES


@dataclass(frozen=True, slots=True)
class TracedReply:
    """One reply of the bot, and how its delivery stands."""

    #: `conversation#number`, as `sayso deliveries` prints it.
    id: str
    #: The state of its delivery; `waits` before that, `forgotten` where only its number is known.
    state: str
    #: When this state began, in Unix seconds; 0 while the reply waits.
    at: float = 0.0
    #: How often sending was tried.
    attempts: int = 0
    #: The platform's id of the message that it became; "" without one.
    receipt: str = ""
    #: Why it was not sent or is an apology; "" where nothing went wrong.
    reason: str = ""
    #: "" unless texts were asked for.
    text: str = ""


@dataclass(frozen=True, slots=True)
class TracedTurn:
    """One turn: a message or tap of a user, or the continuation after a decision.

    Times are in Unix seconds. 0 and "" stand for what is unknown or did not happen.
    """

    #: `conversation@number`.
    id: str
    #: `waits`, `done`, or `forgotten` where only its number is known.
    status: str
    #: The hash of the platform's event id.
    event: str = ""
    received_at: float = 0.0
    finished_at: float = 0.0
    #: How often the platform sent it.
    webhooks: int = 1
    #: How many attempts to answer it were begun.
    attempt: int = 0
    #: The worker that finished it.
    worker: str = ""
    #: The number of the last message that was answered together with it; 0 if it was alone.
    joined_to: int = 0
    #: The names of the tools that it called.
    tools: tuple[str, ...] = ()
    #: The ids of the actions about which it asked.
    asked_actions: tuple[str, ...] = ()
    #: The id of the action that it decided.
    decided_action: str = ""
    #: The id of an action that it answered without deciding it, such as one that had expired.
    undecided_action: str = ""
    #: Why it has no answer of the agent: a key of `_ENDS`.
    end_reason: str = ""
    #: The id of the action after whose decision the agent goes on in this turn.
    continues: str = ""
    #: Why it came in, for a turn that nobody sent in this conversation: an answer of another
    #: person, or a time; "" for a message or a tap, and for a continuation.
    cause: str = ""
    #: How many turns wait before it.
    turns_ahead: int = 0
    #: What its journal says of the attempt in progress, in words.
    steps: tuple[str, ...] = ()
    #: "" unless texts were asked for.
    text: str = ""
    replies: tuple[TracedReply, ...] = ()


@dataclass(frozen=True, slots=True)
class TracedEvent:
    """One change of an action's state."""

    #: The state that began, or `voted`.
    event: str
    #: In Unix seconds.
    at: float
    #: The hash of the platform's event that caused the change; "" where none did, as for an expiry.
    by: str = ""
    #: The id of that event's turn; "" where it is not stored.
    turn: str = ""


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """The question to one person, or to a group, about the action of another person."""

    request_id: str
    #: The id of the conversation in which it stands.
    conversation: str
    ended: RequestEnd
    #: When its message was replaced by the end, in Unix seconds; 0 before.
    closed_at: float = 0.0
    #: Whether its person was asked once nobody else had decided.
    is_escalation: bool = False
    #: Its message; None where that is not stored.
    reply: TracedReply | None = None
    events: tuple[TracedEvent, ...] = ()
    #: The name of the person, "" unless texts were asked for, and for a group.
    person: str = ""


@dataclass(frozen=True, slots=True)
class TracedVote:
    """The answer of one person to a request, as it was counted."""

    request_id: str
    #: `yes` or `no`.
    answer: str
    #: `tap` or `words`.
    form: str
    #: When the answer came in, and when it was counted, in Unix seconds. 0 if that is not known.
    at: float
    counted_at: float = 0.0
    #: The hash of the platform's event of the answer, and its turn; "" where that is not stored.
    by: str = ""
    turn: str = ""
    #: The platform's id of the message that was tapped or quoted.
    question_message_id: str = ""
    #: These are "" unless texts were asked for.
    person: str = ""
    words: str = ""
    reason: str = ""

    def with_texts(self, person: str, words: str, reason: str) -> TracedVote:
        """Return the vote with the name of its person and what they said."""
        return replace(self, person=person, words=words, reason=reason)


@dataclass(frozen=True, slots=True)
class TracedAction:
    """One pending action: a stored proposal that a user was asked about.

    `preview`, `outcome_text` and `user` are "" unless texts were asked for.
    """

    action_id: str
    #: Its state in Redis, "" where Redis no longer has it. The ledger of this machine lacks events
    #: that another machine collected, so this state may be newer than the last event.
    state: str = ""
    #: The hash of the event that led to `state`.
    by: str = ""
    #: What runs it, such as the name of a tool.
    kind: str = ""
    #: The text that the user was asked to agree to.
    preview: str = ""
    #: What the user was told of the outcome.
    outcome_text: str = ""
    user: str = ""
    #: From the ledger and from the entries that still wait in Redis, oldest first.
    events: tuple[TracedEvent, ...] = ()
    #: The id of the action whose standing yes it ran under, "" if it ran under none.
    standing_yes: str = ""
    #: How many people must agree, 0 if its user decides.
    need: int = 0
    #: How the question to other people ended, "" while it waits and if its user decides.
    outcome: str = ""
    requests: tuple[TracedRequest, ...] = ()
    #: In the order in which they were counted.
    votes: tuple[TracedVote, ...] = ()

    @property
    def newest(self) -> str:
        """The newest state that is known, "" without any."""
        if self.state:
            return self.state
        states = [event.event for event in self.events if event.event != VOTED]
        return states[-1] if states else ""


@dataclass(frozen=True, slots=True)
class MessageStory:
    """What happened to one message: its turn, the actions of it, and the turns that answered them.

    All are oldest first.
    """

    #: The id of the conversation, "" where it is unknown.
    conversation: str
    turns: tuple[TracedTurn, ...] = ()
    #: Replies whose turn is not stored.
    replies: tuple[TracedReply, ...] = ()
    actions: tuple[TracedAction, ...] = ()
    #: A sentence that names the worker of the conversation, or says why none works on it; "" where
    #: nothing waits.
    busy: str = ""

    @property
    def all_replies(self) -> tuple[TracedReply, ...]:
        """The replies of all turns, then those that belong to no turn, then all requests."""
        replies: list[TracedReply] = []
        for turn in self.turns:
            replies += turn.replies
        replies += self.replies
        for action in self.actions:
            replies += [request.reply for request in action.requests if request.reply]
        return tuple(replies)


#: Why the agent did not answer a turn, by the reason in the turn's record.
_ENDS = {
    "answered_before": "The model had answered a message after the decision, so nothing was left to go on with.",
    "channel_gone": "The YAML has no such channel any more. The user was told.",
    "failed": "An unexpected error ended it, and the user got an apology. `turn.failed` in the log has the traceback.",
    "forwarded": "It came from another address of the conversation, and was handed on to the main address.",
    "killed_workers": "Its worker died in each attempt, so Sayso gave it up.",
    "repeated": "It repeated what the bot had answered, or asked for time again. It needed no answer.",
    "stale": "The conversation changed while it was answered. The user was told that something went wrong.",
    "stopped": "The user sent /stop.",
    "timeout": "It took longer than `workers.turn_timeout`. The user was told.",
    "unreadable": "The journal of an earlier attempt could not be read, so Sayso did not try again.",
}
#: How the delivery of a reply stands that did not arrive, by its state.
_UNSENT = {
    "dead": "was given up",
    "failed": "was taken by the platform, which did not deliver it",
    "waits": "waits to be sent",
    "held": "waits until the user writes again",
    "retried": "was given up, and then sent again by an operator",
    "forgotten": "is no longer stored",
}
#: Why an action is not confirmed, by its state.
_UNCONFIRMED = {
    "armed": "the question was not delivered yet",
    "shown": "the question waits for an answer",
    "expired": "no answer came in time",
    "cancelled": "it was cancelled",
    "superseded": "it was withdrawn before it ran",
}
#: The same for an action that was superseded because its user changed its values.
_CHANGED = "its user changed it, and was asked anew"
#: The states after which nothing more happens to an action.
_FINAL_STATES = (*EXECUTED_STATES, "cancelled", "expired", "superseded")


def answers(story: MessageStory) -> dict[str, list[str]]:
    """Return the answers to three questions about a story, each as one or more sentences.

    `said_twice`: why the user may have read something twice. `not_answered`: why an answer is
    missing. `confirmed_by`: who confirmed which action, or why it is not confirmed.
    """
    no_repetition = (
        "No repetition is stored here. If the user got two answers, trace the other message, too."
    )
    answered = "It answered. The platform took every reply."
    if not story.all_replies:
        answered = "Its turn and its replies are not known: Redis has forgotten them, or could not be searched."
    no_action = "No confirmation is stored here."
    if story.turns and all(turn.status == "done" for turn in story.turns):
        no_action = "The message asked for no confirmation, and was none."

    return {
        "said_twice": [*_repetitions(story)] or [no_repetition],
        "not_answered": [*_missing_answers(story)] or [answered],
        "confirmed_by": [*_confirmations(story)] or [no_action],
    }


def _repetitions(story: MessageStory) -> Iterator[str]:
    """Yield why the user may have read something twice."""
    for turn in story.turns:
        if turn.webhooks > 1:
            why = "Sayso recognized the repetitions and ignored them."
            yield f"The platform sent {turn.id} {turn.webhooks} times. {why}"
        if turn.attempt > 1:
            why = "A worker died or lost its lease. Only the replies of the last attempt were sent."
            yield f"Workers began {turn.id} {turn.attempt} times. {why}"

        # A reply with the receipt of another turn's reply changed that message in place. It is not
        # one more message.
        other_receipts: set[str] = set()
        for other in story.turns:
            if other != turn:
                other_receipts |= {reply.receipt for reply in other.replies}
        messages = {reply.receipt or reply.id for reply in turn.replies} - other_receipts
        if len(messages) > 1:
            yield f"The answer to {turn.id} has {len(messages)} messages."
        if turn.joined_to:
            yield f"{turn.id} was answered together with the messages up to {turn.joined_to}."

        final_state = _final_state_before(story, turn)
        if final_state and not turn.continues:
            yield (
                f"{turn.id} came after action {turn.undecided_action} had ended ({final_state}), "
                "so its outcome was told again."
            )

    for reply in story.all_replies:
        if reply.state == "ambiguous":
            why = "The platform's answer to an earlier attempt was lost, so the user may have it twice."
            yield f"Reply {reply.id} was sent again, marked as repeated. {why}"
        if reply.state == "retried":
            yield f"Reply {reply.id} was sent again as #{reply.receipt}, by `sayso deliveries retry`."


def _final_state_before(story: MessageStory, turn: TracedTurn) -> str:
    """Return how the action had ended that a turn answered in vain; "" if it had not ended."""
    for action in story.actions:
        if action.action_id != turn.undecided_action:
            continue
        for event in action.events:
            if event.event in _FINAL_STATES and event.at <= turn.received_at:
                return event.event
    return ""


def _missing_answers(story: MessageStory) -> Iterator[str]:
    """Yield why turns have no answer, and why replies did not arrive."""
    for turn in story.turns:
        if turn.status == "waits":
            yield _why_it_waits(story, turn)
        elif turn.status == "forgotten":
            yield f"{turn.id}: it is no longer stored how it was answered. The log has its replies."
        elif turn.cause and turn.end_reason == "answered_before":
            yield f"{turn.id}: it changed nothing here ({turn.cause})."
        elif turn.end_reason:
            yield f"{turn.id}: {_ENDS.get(turn.end_reason, turn.end_reason)}"
        elif not turn.replies:
            yield _where_it_was_answered(story, turn)

    for reply in story.all_replies:
        fate = _UNSENT.get(reply.state)
        if fate:
            reason = f": {reply.reason}" if reply.reason else "."
            busy = ""
            if reply.state == "waits" and story.busy:
                busy = f" {story.busy}"
            yield f"Reply {reply.id} {fate}{reason}{busy}"
        elif reply.reason:
            yield f"Reply {reply.id} is an apology: {reply.reason}"


def _where_it_was_answered(story: MessageStory, turn: TracedTurn) -> str:
    """Return what became of the answer to a finished turn without a reply of its own.

    Where each message costs money, the outcome of a decision is in the first reply of the turn in
    which the agent went on.
    """
    for action in story.actions:
        for vote in action.votes:
            if vote.turn == turn.id:
                return f"{turn.id} is an answer, which was counted for action {action.action_id}."
    for action in story.actions:
        if action.standing_yes and action.action_id in turn.asked_actions:
            return (
                f"{turn.id} asked nothing: {action.action_id} is covered by a standing yes, "
                "and ran in a turn that followed."
            )
    if turn.cause:
        return f"{turn.id} needed no reply here: it is {turn.cause}."
    for other in story.turns:
        if turn.decided_action and other.continues == turn.decided_action and other.replies:
            return f"{turn.id} was answered in {other.id}, in which the agent went on."
    return f"{turn.id} was finished without a reply."


def _why_it_waits(story: MessageStory, turn: TracedTurn) -> str:
    """Return why a turn is not answered yet: its place in the conversation, and its worker."""
    if turn.turns_ahead == 0:
        place = "is next in its conversation"
    elif turn.turns_ahead == 1:
        place = "waits behind 1 message"
    else:
        place = f"waits behind {turn.turns_ahead} messages"

    attempts = ""
    if turn.attempt == 1:
        attempts = " Its attempt 1 has begun."
    elif turn.attempt > 1:
        attempts = f" Workers began it {turn.attempt} times."

    busy = story.busy or "A worker will take it."
    return f"{turn.id} {place}.{attempts} {busy}"


def _confirmations(story: MessageStory) -> Iterator[str]:
    """Yield who confirmed each action, or why it is not confirmed."""
    for action in story.actions:
        yield from _confirmations_of(action)

    turns_of_votes: set[str] = set()
    request_ids: set[str] = set()
    for action in story.actions:
        turns_of_votes.update(vote.turn for vote in action.votes)
        request_ids.update(request.request_id for request in action.requests)
    for turn in story.turns:
        if not turn.undecided_action or turn.continues or turn.cause or turn.id in turns_of_votes:
            continue
        if turn.undecided_action in request_ids:
            yield (
                f"{turn.id} answered request {turn.undecided_action} and did not count: "
                "the reply says why."
            )
            continue
        final_state = _final_state_before(story, turn)
        why = "the reply says why"
        if final_state:
            why = f"it had ended ({final_state})"
        yield f"{turn.id} answered {turn.undecided_action} and did not decide it: {why}."


def _confirmations_of(action: TracedAction) -> Iterator[str]:
    """Yield who confirmed an action, each time that it was; else why it is not confirmed."""
    name = action.action_id
    if action.kind:
        name = f"{action.action_id} ({action.kind})"
    now = f"It is {action.newest} now."
    if action.need:
        yield from _approvals_of(action, name, now)
        return

    claims = [event for event in action.events if event.event == "claimed"]
    for event in claims:
        at = utc_time(event.at)
        if action.standing_yes:
            yield f"{name}: ran at {at} under the standing yes of {action.standing_yes}. {now}"
            continue
        who = action.user or "The user who was asked"
        yield f"{name}: {who} confirmed it at {at} with message {_message(event)}. {now}"
    if claims:
        return

    # No claim is known: it was not confirmed, or the ledger of another machine has the entry.
    why = _UNCONFIRMED.get(action.newest)
    # Without a claim, only a change by its user supersedes an action.
    if action.newest == "superseded" and action.events:
        why = _CHANGED
    if why:
        causes = [event for event in action.events if event.event == action.newest and event.by]
        by_message = f" by message {_message(causes[-1])}" if causes else ""
        yield f"{name}: not confirmed, {why}{by_message}."
    elif action.newest:
        with_message = f" with message {action.by}" if action.by else ""
        yield f"{name}: confirmed{with_message}; the ledger of another machine knows when. {now}"
    else:
        yield f"{name}: not known here. Run the command on the other machines, which have ledgers of their own."


def _approvals_of(action: TracedAction, name: str, now: str) -> Iterator[str]:
    """Yield what other people decided about an action: the result, each vote, and who was asked.

    `name`: how the action is called. `now`: a sentence with its state.
    """
    # The newest answer of each request counts: in a group several people answer the same one.
    agreed = len({vote.by for vote in action.votes if vote.answer == "yes"})
    match action.outcome:
        case "approved":
            result = f"other people agreed. {now}"
        case "denied":
            result = "other people refused."
        case "withdrawn":
            result = "it was withdrawn before others had decided."
        case "expired":
            result = f"it expired: {agreed} of {action.need} had agreed."
        case "unreachable":
            result = "too few of those who may decide could be asked."
        case _:
            result = _still_waits(action, agreed)
    yield f"{name}: {result}"

    for vote in action.votes:
        how = "by tap" if vote.form == "tap" else "in words"
        who = vote.person or "A person"
        where = f"{vote.by} ({vote.turn})" if vote.turn else vote.by
        yield (
            f"{who} said {vote.answer} to request {vote.request_id} {how} at "
            f"{utc_time(vote.at)} with message {where}."
        )
    for request in action.requests:
        if request.ended not in ("answered yes", "answered no"):
            asked = request.person or "a person or group"
            yield (
                f"Request {request.request_id} to {asked} in {request.conversation}: "
                f"{request.ended}."
            )


def _still_waits(action: TracedAction, agreed: int) -> str:
    """Return why an action is not decided yet. `agreed`: how many yes there are."""
    if action.newest == "armed":
        return "the notice to the user who asked was not delivered yet."
    if action.newest == "shown":
        return f"it waits for other people: {agreed} of {action.need} agree so far."
    return f"the ledger of another machine knows who decided. It is {action.newest} now."


def _message(event: TracedEvent) -> str:
    """Return the message that caused a change: its hash, and its turn if that is stored."""
    return f"{event.by} ({event.turn})" if event.turn else event.by
