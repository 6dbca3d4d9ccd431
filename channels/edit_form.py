"""EditForm: the values of a proposed action that its person may change before the yes.

A form has a field for each value: an argument of the call. Each platform shows the form in its own
way, and sends back what was filled in as texts, which the fields read. A form is read without the
agent's tools: the record of the action holds all that its fields need.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Literal, NamedTuple, get_args

from sayso.channels.types import storable

#: The most characters of one value, in a form of any platform: a field of Slack takes no more.
MAX_VALUE_CHARS = 3000
#: The most fields of a form, which platforms show in one window.
MAX_FIELDS = 30
#: The most characters of all fields of a form as JSON, so that the record of an action stays small.
MAX_FORM_CHARS = 32_000
#: The most characters of a text that is filled in on one line.
MAX_LINE_CHARS = 80
#: The most characters of a number. A longer one is no amount.
MAX_NUMBER_CHARS = 30
#: How a field is filled in. `lines` is a list of texts, one on each line.
FieldType = Literal[
    "text", "lines", "integer", "number", "boolean", "choice", "date", "time", "datetime"
]
#: Why a value cannot be taken, as `Texts.field_problem` says it. "refused" is for a value that is
#: well-formed and that the tool or its policy does not take: `value_changes.py` finds that out.
ProblemKind = Literal[
    "empty",
    "number",
    "integer",
    "too_small",
    "too_large",
    "too_long",
    "choice",
    "date",
    "time",
    "datetime",
    "refused",
]
#: The types of fields with a date or a time: the problem of a malformed value, and the class that
#: reads one.
_MOMENTS: Mapping[str, tuple[ProblemKind, type[date] | type[time]]] = {
    "date": ("date", date),
    "time": ("time", time),
    "datetime": ("datetime", datetime),
}
#: A whole number as people write it. `int` would also take "1_000".
_INTEGER = re.compile(r"[+-]?\d+")
#: A number as people write it, with a point or a comma.
_NUMBER = re.compile(r"[+-]?(\d+([.,]\d*)?|[.,]\d+)")
#: A digit of any script, such as Arabic.
_DIGIT = re.compile(r"\d")
#: A number whose mark may separate thousands or begin a fraction: 1,000 or 1.000. People of other
#: countries read it in the other way. A number that begins with 0 has no thousands, and a thousands
#: mark has exactly three digits behind it.
_AMBIGUOUS = re.compile(r"([+-]?[1-9]\d{0,2})[.,](\d{3})")


class FieldProblem(NamedTuple):
    """Why a value cannot be taken."""

    kind: ProblemKind
    #: The bound or the choices that the text of the problem names, "" for none.
    detail: str = ""


class UnreadableValue(ValueError):
    """Raised for a text that is no value of its field. `problem` says why."""

    def __init__(self, problem: FieldProblem) -> None:
        super().__init__(problem.kind)
        self.problem = problem


@dataclass(frozen=True, slots=True)
class FormField:
    """One value that a person may change. Stored in the record of the action."""

    #: The name of the argument; in a plan after the number of its step, as in "2.quantity".
    name: str
    #: What people read above the field.
    label: str
    type: FieldType
    #: The present value, as JSON holds it.
    value: Any = None
    #: What people read below the label, "" for nothing.
    description: str = ""
    #: The values to choose from, for the type `choice`.
    choices: tuple[Any, ...] = ()
    #: Whether a value is needed. Without one, the call has no such argument, and the tool's default
    #: counts.
    required: bool = True
    #: The smallest and the largest number that is allowed, None for no limit.
    minimum: float | None = None
    maximum: float | None = None
    #: The most characters of a text, and of each line of `lines`. At most MAX_VALUE_CHARS, which is
    #: also the limit for all lines together.
    max_chars: int = MAX_VALUE_CHARS
    #: Whether the tool takes the number as text, such as a Decimal.
    as_text: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "choices", tuple(self.choices))

    @property
    def text(self) -> str:
        """The present value as a person types it."""
        return value_text(self.value)

    @property
    def choice_texts(self) -> tuple[str, ...]:
        """The choices as people read them, and as a form sends them back."""
        return tuple(map(value_text, self.choices))

    @property
    def is_long(self) -> bool:
        """Whether the field is filled in on several lines."""
        if self.type == "text":
            return "\n" in self.text or len(self.text) > MAX_LINE_CHARS
        return self.type == "lines"

    def read(self, text: str) -> Any:
        """Return the value that a person typed, as JSON holds it.

        None for an empty text, if the field is not required. Raises UnreadableValue.
        """
        text = storable(text)
        # A choice may itself be empty, or have spaces at its ends. So a text that is exactly one of
        # the choices is taken before the spaces are removed.
        if self.type == "choice" and text in self.choice_texts:
            return self._choice(text)
        # Some browsers and models write line ends as "\r\n".
        text = text.strip().replace("\r\n", "\n")
        if not text:
            if self.required:
                raise UnreadableValue(FieldProblem("empty"))
            return None
        if len(text) > MAX_VALUE_CHARS:
            raise UnreadableValue(FieldProblem("too_long", str(MAX_VALUE_CHARS)))
        match self.type:
            case "integer" | "number":
                return self._number(text)
            case "boolean":
                if text not in ("true", "false"):
                    raise UnreadableValue(FieldProblem("choice", "true, false"))
                return text == "true"
            case "choice":
                return self._choice(text)
            case "date" | "time" | "datetime":
                return self._moment(text)
            case "lines":
                lines = [line.strip() for line in text.splitlines()]
                return [self._short_enough(line) for line in lines if line]
        return self._short_enough(text)

    def _short_enough(self, text: str) -> str:
        """Return a text that is not too long. Raises UnreadableValue."""
        if len(text) > self.max_chars:
            raise UnreadableValue(FieldProblem("too_long", str(self.max_chars)))
        return text

    def _number(self, text: str) -> int | float | str:
        """Return a number within the field's bounds. Raises UnreadableValue."""
        text = _DIGIT.sub(lambda digit: str(int(digit[0])), text)
        kind: ProblemKind = "number"
        pattern = _NUMBER
        if self.type == "integer":
            kind = "integer"
            pattern = _INTEGER
        if not pattern.fullmatch(text) or len(text) > MAX_NUMBER_CHARS:
            raise UnreadableValue(FieldProblem(kind))
        ambiguous = _AMBIGUOUS.fullmatch(text)
        if ambiguous:
            # The person is asked to write one of the two readings. With the 0 at its end, the
            # second one is not ambiguous.
            whole, last_digits = ambiguous.groups()
            readings = f"{whole}{last_digits}, {whole}.{last_digits}0"
            raise UnreadableValue(FieldProblem("choice", readings))

        number = Decimal(text.replace(",", "."))
        if self.minimum is not None and number < Decimal(str(self.minimum)):
            raise UnreadableValue(FieldProblem("too_small", value_text(self.minimum)))
        if self.maximum is not None and number > Decimal(str(self.maximum)):
            raise UnreadableValue(FieldProblem("too_large", value_text(self.maximum)))

        if self.as_text:
            return format(number, "f")
        if self.type == "integer":
            return int(number)
        return _as_json_number(number)

    def _choice(self, text: str) -> Any:
        """Return the choice that a text names. Raises UnreadableValue.

        People may type it with other capitals, and with spaces around it. A text that names several
        choices is refused.
        """
        spellings: tuple[Callable[[str], str], ...] = (
            str,
            str.strip,
            lambda typed: typed.strip().casefold(),
        )
        for spelled in spellings:
            similar = [each for each in self.choices if spelled(value_text(each)) == spelled(text)]
            if len(similar) == 1:
                return similar[0]
        raise UnreadableValue(FieldProblem("choice", ", ".join(self.choice_texts)))

    def _moment(self, text: str) -> str:
        """Return a date or a time in the form of ISO 8601. Raises UnreadableValue.

        `text` may have any form of ISO 8601. A date alone, in a field for date and time, is its
        midnight. A time without a time zone gets the one of the present value, if that has one: it
        would be another moment without.
        """
        kind, read = _MOMENTS[self.type]
        try:
            moment = read.fromisoformat(text)
        except ValueError as exc:
            raise UnreadableValue(FieldProblem(kind)) from exc

        if isinstance(moment, datetime | time) and moment.tzinfo is None:
            # The present value is a model's, and may be no date at all.
            with suppress(ValueError):
                present = read.fromisoformat(self.text)
                if isinstance(present, datetime | time):
                    moment = moment.replace(tzinfo=present.tzinfo)
        return moment.isoformat()

    def is_present_value(self, value: Any) -> bool:
        """Return whether a value that `read` returned is the present one.

        The present value is a model's, and may be written in another way: "10:00Z" for
        "10:00:00+00:00". So it is also compared as `read` would write it.
        """
        if _are_equal(value, self.value):
            return True
        try:
            return _are_equal(value, self.read(self.text))
        except UnreadableValue:
            return False

    def to_dict(self) -> dict[str, Any]:
        """Return the field ready for JSON, without the entries that have their defaults."""
        entry = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if value != each.default:
                entry[each.name] = value
        if self.choices:  # a list, as it is read back from JSON
            entry["choices"] = list(self.choices)
        return entry

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> FormField:
        """Return the field that `to_dict` wrote. Raises TypeError for anything else."""
        field = cls(**data)
        are_texts = all(
            isinstance(text, str) for text in (field.name, field.label, field.description)
        )
        if field.type not in get_args(FieldType) or not are_texts:
            raise TypeError(f"{data!r} is no field of a form")
        return field


@dataclass(frozen=True, slots=True)
class FormAnswer:
    """What a person has filled in, by the names of the fields."""

    #: The values that differ from the present ones. None removes the argument from the call.
    changes: dict[str, Any]
    #: Why other values cannot be taken.
    problems: dict[str, FieldProblem]


@dataclass(frozen=True, slots=True)
class EditForm:
    """The form by which a person changes one open action."""

    #: The id of the action.
    pending_action_id: str
    #: What the person was asked, as Markdown.
    preview: str
    #: The language of the question.
    language: str
    fields: tuple[FormField, ...]
    #: How long the question is still open, 0.0 if that is unknown.
    seconds_left: float = 0.0

    def read(self, values: Mapping[str, str]) -> FormAnswer:
        """Return what was filled in. A field that is not in `values` keeps its value.

        `values` are texts by the names of fields. Raises KeyError for a name that the form does not
        have: what came in was forged, or is of another form.
        """
        by_name = {each.name: each for each in self.fields}
        changes: dict[str, Any] = {}
        problems: dict[str, FieldProblem] = {}
        for name, text in values.items():
            field = by_name[name]
            # A present value stays even if a person could not type it: a model may have given a
            # date in words, or left a required value empty.
            if _is_untouched(field, text):
                continue
            try:
                value = field.read(text)
            except UnreadableValue as exc:
                problems[name] = exc.problem
                continue
            if not field.is_present_value(value):
                changes[name] = value
        return FormAnswer(changes, problems)


def _is_untouched(field: FormField, text: str) -> bool:
    """Return whether a form sent back the text that it showed.

    Platforms may remove spaces at its ends. Only between choices can these make a difference.
    """
    if field.type == "choice":
        return text == field.text
    return text.strip() == field.text.strip()


def _are_equal(value: Any, other: Any) -> bool:
    """Return whether two values are the same in JSON. In Python, True also equals 1."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def value_text(value: Any) -> str:
    """Return a value of a field as a person types it."""
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case float() if value.is_integer():
            return str(int(value))
        case list() | tuple():
            return "\n".join(map(value_text, value))
    return str(value)


def _as_json_number(number: Decimal) -> int | float:
    """Return a number as an int if it is whole, which a float may not hold exactly."""
    is_whole = number == number.to_integral_value()
    if is_whole:
        return int(number)
    return float(number)


def fits_in_record(entries: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a record may hold a form with these fields, as `to_dict` wrote them."""
    return len(entries) <= MAX_FIELDS and len(json.dumps(entries)) <= MAX_FORM_CHARS


def form_fields(entries: Sequence[Mapping[str, Any]]) -> tuple[FormField, ...]:
    """Return the fields that a record holds. Raises TypeError for anything else."""
    return tuple(FormField.from_dict(entry) for entry in entries)
