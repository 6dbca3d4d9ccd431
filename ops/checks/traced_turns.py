"""TurnReader: the turns and replies of a stored conversation, as `sayso trace` shows them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sayso.channels.types import digest
from sayso.ops.checks.stored_conversation import StoredConversation
from sayso.ops.checks.stored_json import stored_fields
from sayso.ops.checks.story import TracedReply, TracedTurn
from sayso.workers.queue_entries import InboxEntry


class TurnReader:
    """Reads turns and replies from what is stored of a conversation. Lives as long as a command.

    Without `show_texts` they have no text.
    """

    def __init__(self, *, show_texts: bool) -> None:
        self._show_texts = show_texts

    def turn(self, state: StoredConversation, seq: int) -> TracedTurn | None:
        """Return the turn of a number: finished, waiting or forgotten. None for no turn at all."""
        record = state.records.get(seq)
        if record:
            return self._finished_turn(state, seq, record)
        for ahead, entry in enumerate(state.inbox):
            if entry.seq == seq:
                return self._waiting_turn(state, entry, ahead)
        if seq <= state.last_turn:
            return TracedTurn(turn_id(state, seq), "forgotten", webhooks=_webhooks(state, seq))
        return None

    def _finished_turn(
        self, state: StoredConversation, seq: int, record: Mapping[str, Any]
    ) -> TracedTurn:
        """Return a turn that was answered, from its record."""
        replies = [self.reply(state, int(number)) for number in record["replies"]]
        return TracedTurn(
            turn_id(state, seq),
            "done",
            record["event"],
            received_at=record["at"] / 1000,
            finished_at=record["done"] / 1000,
            webhooks=_webhooks(state, seq),
            attempt=record["attempt"],
            worker=record["worker"],
            joined_to=record.get("upto", 0),
            tools=tuple(record.get("tools", ())),
            asked_actions=tuple(record.get("asked", ())),
            decided_action=record.get("decided", ""),
            undecided_action=record.get("about", ""),
            end_reason=record.get("ended", ""),
            continues=record.get("continues", ""),
            replies=tuple(filter(None, replies)),
        )

    def _waiting_turn(self, state: StoredConversation, entry: InboxEntry, ahead: int) -> TracedTurn:
        """Return a turn that waits in the inbox, behind `ahead` others."""
        turn = stored_fields(entry.turn)
        # Only the first turn can have been begun. This field has its number, an epoch and how many
        # attempts at it were begun.
        attempt = 0
        numbers = state.fields["turn_attempts"].split(" ")
        if numbers[0] == str(entry.seq):
            attempt = int(numbers[2])
        return TracedTurn(
            turn_id(state, entry.seq),
            "waits",
            digest(str(turn.get("event_id", ""))),
            received_at=entry.received_ms / 1000,
            webhooks=_webhooks(state, entry.seq),
            attempt=attempt,
            continues=str(turn.get("continues", "")),
            turns_ahead=ahead,
            steps=tuple(_steps(state.journal)) if ahead == 0 else (),
            text=str(turn.get("text", "")) if self._show_texts else "",
        )

    def reply(self, state: StoredConversation, number: int) -> TracedReply | None:
        """Return the reply of a number: delivered, waiting or forgotten. None for no reply."""
        reply_id = f"{state.conversation}#{number}"
        entry = state.deliveries.get(number)
        if entry:
            return TracedReply(
                reply_id,
                entry.state,
                entry.at_ms / 1000,
                entry.attempts,
                receipt=entry.receipt,
                reason=entry.reason,
            )

        if number in state.outbox:
            return self._waiting_reply(state, number, reply_id)
        if 0 < number <= state.newest_reply:
            return TracedReply(reply_id, "forgotten")
        return None

    def _waiting_reply(self, state: StoredConversation, number: int, reply_id: str) -> TracedReply:
        """Return a reply that waits in the outbox."""
        # Only the first reply of an outbox can have been tried, or be held for its user to write.
        hold: Mapping[str, Any] = {}
        attempts = 0
        if number == next(iter(state.outbox)):
            hold = stored_fields(state.fields["held_reply"])
            attempts = int(state.fields["reply_attempts"] or 0)

        text = ""
        if self._show_texts:
            delivery = stored_fields(state.outbox[number].record)
            text = str(stored_fields(delivery.get("reply")).get("text", ""))
        return TracedReply(
            reply_id,
            "held" if hold.get("number") == str(number) else "waits",
            attempts=attempts,
            reason=hold.get("reason", state.fields["closed_address"]),
            text=text,
        )


def turn_id(state: StoredConversation, seq: int) -> str:
    """Return the id of a turn, as `sayso trace` takes it."""
    return f"{state.conversation}@{seq}"


def _webhooks(state: StoredConversation, seq: int) -> int:
    """Return how many webhooks brought this turn: platforms repeat those that they take for lost."""
    return 1 + state.repetitions.get(seq, 0)


def _steps(journal: Sequence[str]) -> Iterator[str]:
    """Yield the steps of a turn in words: the tool calls that were requested, begun and returned.

    The first entry of the journal names the turn. `RedisJournals` writes the others: an `answer` of
    the model, the positions of the calls in it that have `begun`, and each `call` that returned.
    """
    names: list[str] = []
    for entry in map(stored_fields, journal[1:]):
        try:
            if "answer" in entry:
                calls = entry["answer"].get("tool_calls", ())
                names = [str(call["tool_name"]) for call in calls]
                yield f"the model asked for {', '.join(names)}"
            elif "started" in entry:
                yield f"{', '.join(names[at] for at in entry['started'])} began"
            elif "call" in entry:
                outcome = "returned"
                if entry.get("is_unknown"):
                    outcome = "has an unknown outcome"
                yield f"{names[entry['call']]} {outcome}"
        except (AttributeError, IndexError, KeyError, TypeError):
            yield "an entry of the journal that cannot be read"
