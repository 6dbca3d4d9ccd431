"""ChannelBehavior: how a channel asks, answers and speaks. An operator sets it for each channel."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import get_args

from sayso.channels.i18n.texts import texts_for
from sayso.channels.types import Conversation, Reply
from sayso.pending.action import After, OtherMessage
from sayso.pending.turn_changes import NewAction, outbox_entry


@dataclass(frozen=True, slots=True)
class Escalation:
    """The setting by which operators are told about a question that waits for too long."""

    #: How long a question waits for an answer before the message is sent, in seconds.
    after_seconds: float
    #: The conversation of the operators.
    to: Conversation
    #: The language of the message.
    language: str = "en"

    def added_to(self, action: NewAction, preview: str, asked_in: Conversation) -> NewAction:
        """Return the action with a message for the operators, its *alarm*.

        The store sends it unless the action is decided before. It names the channel, the preview
        and the time limit, and not the user: only the preview may be shown to others.
        """
        text = texts_for(self.language).escalation(preview, asked_in.channel, action.ttl_ms / 1000)
        reply = Reply(text, language=self.language)
        is_elsewhere = self.to.id != asked_in.id
        entry = outbox_entry(self.to, reply, forward=is_elsewhere, later=True)
        return replace(action, alarm=entry, alarm_after_ms=round(self.after_seconds * 1000))


@dataclass(frozen=True, kw_only=True)
class ChannelBehavior:
    """How one channel asks, answers and speaks. Lives as long as its `ChannelAgent`.

    Raises ValueError for another `after` or `other_message`.
    """

    #: How long a question can be answered, in seconds; None for the time of the store.
    confirm_ttl: float | None = None
    #: The language for people whose own is not known or not spoken.
    language: str = "en"
    #: The languages in which the channel answers people who write in them; empty for all languages
    #: that its parser of answers reads.
    languages: Collection[str] = ()
    #: Whether a plain "ok" right after the question is a yes.
    confirm_ok: bool = False
    #: What a message about something else does to an open question whose tool says nothing: "drop"
    #: ends it, "keep" answers the message and leaves it open.
    other_message: OtherMessage = "drop"
    #: What follows the outcome of an action whose tool and policy say nothing: "say" ends the
    #: request with the bot's own text, "continue" lets the model go on with it.
    after: After = "say"
    #: Whether an outcome and what the model says next are one message, because each message costs
    #: money.
    is_one_message: bool = False
    #: The most buttons under a question. Those that a question can do without are left out beyond.
    max_buttons: int = 4
    #: Whether /help and the other commands are answered, without the model.
    commands: bool = True
    #: Whether people are told when their question expires.
    expiry_notice: bool = False
    #: Tells operators about unanswered questions; None: they are not told.
    escalation: Escalation | None = None

    def __post_init__(self) -> None:
        if self.after not in get_args(After):
            raise ValueError(f"after={self.after!r} is unknown: give 'continue' or 'say'")
        if self.other_message not in get_args(OtherMessage):
            raise ValueError(
                f"other_message={self.other_message!r} is unknown: give 'drop' or 'keep'"
            )
