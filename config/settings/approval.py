"""Settings below `policy.approval`: who decides about the calls of a tool.

`ApprovalSettings.rule` is the ApprovalRule that becomes a signed part of each action. The docstring
below a field is its text in the reference of the YAML.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BeforeValidator, Field, PlainValidator, model_validator

from sayso.channels.base import Count, Section, refuse_none
from sayso.config.settings.durations import Duration
from sayso.pending.approval_rule import (
    DEFAULT_WITHIN_SECONDS,
    MAX_NEED,
    MAX_WITHIN_SECONDS,
    ApprovalEscalation,
    ApprovalPlace,
    ApprovalRule,
    Deciders,
    ReasonNeeded,
)

#: Words that stand for the people who decide: the asker, or each other person in the chat.
DecidersWord = Literal["asker", "anyone_else"]
#: A text with this prefix names a role: `by: role manager`.
_ROLE_PREFIX = "role "


def _list_of_one(value: object) -> object:
    """Return a list with a single name, and any other value unchanged."""
    if isinstance(value, str):
        return [value]
    return value


_Name = Annotated[str, Field(min_length=1)]
#: A list of names. The YAML may write a single name without a list.
_Names = Annotated[
    list[_Name], BeforeValidator(_list_of_one, json_schema_input_type=_Name | list[_Name])
]


class DecidersSettings(Section):
    """The people who may decide: those who have a role, or those who are named."""

    role: _Names = []
    """The role of the people. Of several roles, one is enough. Example: `manager`."""
    people: _Names = []
    """The names of the people, as `people` has them. Example: `[ana, ben]`."""

    @model_validator(mode="after")
    def _of_one_kind(self) -> Self:
        if bool(self.role) == bool(self.people):
            raise ValueError("give either role or people, such as {role: manager}")
        return self

    @property
    def deciders(self) -> Deciders:
        """The same people, as the rule of an action describes them."""
        if self.role:
            return Deciders("role", tuple(self.role))
        return Deciders("people", tuple(self.people))


def _read_deciders(value: Any) -> DecidersSettings | str:
    """Return the people who decide: a section, also for `role ...`, or a DecidersWord.

    Raises ValueError for an unknown text, and pydantic.ValidationError for a malformed section.
    """
    if isinstance(value, DecidersSettings):
        return value
    if isinstance(value, str) and value in get_args(DecidersWord):
        return value
    if isinstance(value, str) and value.startswith(_ROLE_PREFIX):
        value = {"role": value.removeprefix(_ROLE_PREFIX).strip()}
    if not isinstance(value, dict):
        raise ValueError(
            "names nobody: write asker, anyone_else, {role: manager} or {people: [ana, ben]}"
        )
    return DecidersSettings.model_validate(value)


#: The people who may decide, as the YAML writes them.
AnyDeciders = Annotated[
    DecidersSettings | DecidersWord,
    PlainValidator(
        _read_deciders,
        json_schema_input_type=DecidersSettings
        | DecidersWord
        | Annotated[str, Field(pattern=f"^{_ROLE_PREFIX}")],
    ),
]


def deciders_of(settings: DecidersSettings | DecidersWord) -> Deciders:
    """Return the same people, as the rule of an action describes them."""
    if isinstance(settings, DecidersSettings):
        return settings.deciders
    return Deciders(settings)


def _channel_alone(value: object) -> object:
    """Return the section for a name of a channel, and a section unchanged. Refuses None."""
    value = refuse_none(value)
    if isinstance(value, str):
        return {"channel": value}
    return value


class ApprovalPlaceSettings(Section):
    """Where people are asked: each in a direct chat on a channel, or all in one chat."""

    channel: str
    """The name of the channel. Example: `team`."""
    chat: str = ""
    """The id of the chat on its platform. Without it: each person is asked in a direct chat.
    Example: `C123`.
    """
    thread: str = ""
    """The id of the thread, if it is in one. Example: `'1700000000.000100'`."""

    @model_validator(mode="after")
    def _thread_of_a_chat(self) -> Self:
        if self.thread and not self.chat:
            raise ValueError("a thread is in a chat: add chat")
        return self


class ApprovalEscalationSettings(Section):
    """Who else may decide, once a question has waited for some time."""

    after: Duration = Field(gt=0, le=MAX_WITHIN_SECONDS)
    """After how long: seconds, or text such as `1h`. Example: `1h`."""
    by: AnyDeciders
    """Who may decide from then on, besides those who could before. Example: `{role: director}`."""


class ApprovalSettings(Section):
    """Who decides about the calls of a tool, how many of them, and until when.

    The person who asks for a call never decides about it, except with `by: asker`.
    """

    by: AnyDeciders
    """Who may decide: people with a role (`{role: manager}`, or `role manager`), named people
    (`{people: [ana, ben]}`), each other person in the conversation (`anyone_else`), or the person
    who asks (`asker`), which forces a question and needs nothing else. Example: `{role: manager}`.
    """
    need: Count = Field(default=1, ge=1, le=MAX_NEED)
    """How many different people must say yes. Example: `2`."""
    denials: Count = Field(default=1, ge=1, le=MAX_NEED)
    """How many different people must say no to end the action. Example: `2`."""
    on: Annotated[
        ApprovalPlaceSettings | None,
        BeforeValidator(_channel_alone, json_schema_input_type=ApprovalPlaceSettings | str),
    ] = None
    """Where they are asked: the name of a channel, on which each of them is asked in a direct chat,
    or one chat. Without it: each of them in a direct chat, with their first account, and
    `anyone_else` in the conversation of the person who asks. Example: `{channel: team, chat: C123}`.
    """
    within: Duration = Field(default=DEFAULT_WITHIN_SECONDS, gt=0, le=MAX_WITHIN_SECONDS)
    """How long they have: seconds, or text such as `2h`; at most 14 days. Example: `2h`."""
    reminder: Duration = Field(default=0.0, ge=0, le=MAX_WITHIN_SECONDS)
    """After how long those who have not decided are reminded, once; 0 for never. Example: `30m`."""
    escalate: ApprovalEscalationSettings | None = None
    """Who else may decide, if the question waits for long.

    Example: `{after: 1h, by: {role: director}}`.
    """
    reason: ReasonNeeded = "never"
    """When people who decide must give a reason: with each no (`on_deny`), with each answer
    (`always`), or never. Example: `on_deny`.
    """

    @model_validator(mode="after")
    def _can_be_fulfilled(self) -> Self:
        if self.by == "asker" and self.model_fields_set != {"by"}:
            others = ", ".join(sorted(self.model_fields_set - {"by"}))
            raise ValueError(f"the asker decides alone, as without a rule: remove {others}")
        if self.escalate and self.escalate.by == "asker":
            raise ValueError("escalate.by: the person who asks cannot decide later either")

        asks_anyone = self.by == "anyone_else"
        if self.escalate and self.escalate.by == "anyone_else":
            asks_anyone = True
        if asks_anyone and self.on and not self.on.chat:
            raise ValueError(
                f"anyone_else needs a chat in which people are asked: write on: "
                f"{{channel: {self.on.channel}, chat: ...}}, or leave on out"
            )
        # Raises ValueError for numbers and times that do not fit together.
        _ = self.rule
        return self

    @property
    def rule(self) -> ApprovalRule:
        """The rule that becomes a signed part of each action."""
        place = None
        if self.on:
            place = ApprovalPlace(self.on.channel, self.on.chat, self.on.thread)
        escalation = None
        if self.escalate:
            escalation = ApprovalEscalation(self.escalate.after, deciders_of(self.escalate.by))
        return ApprovalRule(
            by=deciders_of(self.by),
            need=self.need,
            denials=self.denials,
            on=place,
            within_seconds=self.within,
            reminder_seconds=self.reminder,
            escalation=escalation,
            reason=self.reason,
        )
