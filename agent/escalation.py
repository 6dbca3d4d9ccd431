"""Escalation: who hears of a question that its person leaves unanswered, and when."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sayso.channels.types import Conversation, Reply
from sayso.pending.texts import speak
from sayso.workers.lane import Arm, outbox_entry


@dataclass(frozen=True, slots=True)
class Escalation:
    """One channel's operators: the conversation that hears, in its language, of what waited `after_seconds`."""

    after_seconds: float
    to: Conversation
    language: str = "en"

    def alarmed(self, arm: Arm, preview: str, asked_in: Conversation) -> Arm:
        """The action, and what the operators hear when nobody answers: its channel, its preview, its window.

        They do not hear who was asked: the preview says what may be said.
        """
        told = speak(self.language).escalation(preview, asked_in.channel, arm.ttl_ms / 1000)
        reply, elsewhere = Reply(told, language=self.language), self.to.id != asked_in.id
        entry = outbox_entry(self.to, reply, forward=elsewhere)
        return replace(arm, alarm=entry, alarm_after_ms=round(self.after_seconds * 1000))
