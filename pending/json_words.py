"""JSON of an API as text for people: labels for keys, names for objects.

Only what tells a person nothing is left out: empty fields, ids beside a name, and addresses of an
API. A last line names what was left out. Long lists end in "and 12 more".
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

#: The most rows of a list that are written one a line.
MAX_ROWS = 50
#: The most fields of an object that are written one a line.
MAX_LINES = 60
#: The most values of a list inside a line.
MAX_VALUES = 20
#: The most objects of a list inside a line.
MAX_OBJECTS = 10
#: The most fields of a row. An object inside another shows half as many fields as that one; the
#: same holds for the next two limits.
MAX_ROW_FIELDS = 8
#: The most fields of an object in one line.
MAX_LINE_FIELDS = 12
#: The most fields of an object that a person has to choose.
MAX_CHOICE_FIELDS = 20
#: Characters of a text inside a row or an object.
MAX_INNER_CHARS = 120
#: Characters of an address there, which would lead nowhere if it were cut.
MAX_ADDRESS_CHARS = 500
#: How many objects inside each other are written out.
MAX_DEPTH = 4
#: A list in a field stays in its line up to this number of characters.
MAX_LIST_CHARS = 100
#: Labels of fields that are named as left out.
MAX_NAMED_FIELDS = 3
#: How deep objects and lists may be nested in a text that is cut off.
MAX_CUT_DEPTH = 100
#: Characters of a text that is read as JSON if it looks like it.
MAX_ENCODED_CHARS = 200_000

#: The fields that name an object, the best first.
_NAMES = (
    "name",
    "title",
    "full_name",
    "display_name",
    "displayName",
    "summary",
    "login",
    "username",
    "label",
    "email",
)
#: The fields with the address of a page that people can open.
_PAGES = frozenset(
    """html_url htmlUrl html_link htmlLink web_url webUrl web_link webLink webViewLink permalink
    permalink_url receipt_url hosted_invoice_url order_status_url""".split()
)
#: Fields that only programs read.
_TECHNICAL = frozenset(
    """node_id gravatar_id etag eTag _etag _rev _type _self _links _class __typename $schema iCalUID
    admin_graphql_api_id nextPageToken next_page_token nextSyncToken next_cursor""".split()
)
_TECHNICAL_PREFIXES = ("@odata.",)
#: The fields that number an object, so that its id is of no use.
_NUMBERS = ("number", "order_number", "invoice_number")
#: The words at the end of a key that make it an id or an address.
_IDS = frozenset(("id", "ids", "uid", "uuid", "guid"))
_ADDRESSES = frozenset(("url", "urls", "uri", "href", "link"))
#: Words in the key of an address that leads to a picture beside a name.
_PICTURES = frozenset(("avatar", "gravatar", "icon"))
#: Words that are written in capitals.
_CAPITALS = frozenset(("id", "url", "uri", "ip", "api", "sku", "vat", "iban", "pdf", "html"))
#: Ids up to this length are short enough to be said by a person, such as the number of an order.
_SPOKEN_ID_CHARS = 8

#: The punctuation of JSON outside of texts. A text without an end is cut off.
_CUT_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\Z)|[][{},]', re.DOTALL)
#: A key that a program chose. All other keys may be data, such as a file's name,
#: and stay as they are.
_FIELD_NAME = re.compile(r"_{0,2}[A-Za-z][A-Za-z0-9]*(?:_[A-Za-z0-9]+)*_?")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
#: Values that are ids whatever their key: those with a prefix as Stripe makes them, and UUIDs.
_OPAQUE = re.compile(
    r"[a-z]{2,6}_(?=[A-Za-z0-9]*\d)(?=[A-Za-z0-9]*[A-Za-z])[A-Za-z0-9]{14,}"
    r"|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
)
_WEB_ADDRESS = re.compile(r"https?://(?P<host>[^/?#]*)(?P<path>[^?#]*)")
_API_PATH = re.compile(r"/(?:api|apis|rest|graphql|v\d+)(?:/|$)")
_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d(?::\d\d)?)(?:\.\d+)?(Z|[+-]\d\d:?\d\d)?")
#: Keys of times that are numbers: seconds since 1970, here those of the years 2001 to 2100.
_TIME_KEY = re.compile(r"(?:created|updated|modified|deleted|expires|timestamp)(?:_at)?|[a-z_]+_at")
_TIMES = range(1_000_000_000, 4_102_444_800)


def decode(text: str) -> Any:
    """Return the value of a JSON text. Raises ValueError or RecursionError.

    Numbers with a fraction become texts, so that no digit gets lost.
    """
    return json.loads(text, parse_float=str)


def decode_cut(text: str) -> Any:
    """Return the value of a JSON object or list whose end is cut off: its whole members.

    Raises ValueError for any other text, and RecursionError.
    """
    # The brackets that close what is open at the present token, the innermost first.
    closing = ""
    # Where the last whole member ends, and the brackets that close what is open there.
    last_end = 0
    last_closing = ""
    for token in _CUT_TOKENS.finditer(text):
        match token[0]:
            case "{":
                closing = "}" + closing
            case "[":
                closing = "]" + closing
            case ",":
                last_end = token.start()
                last_closing = closing
            case "}" | "]":
                closing = closing[1:]
                last_end = token.end()
                last_closing = closing
        # The value has ended, or it is nested too deep to be read.
        is_complete = last_end > 0 and not closing
        if is_complete or len(closing) > MAX_CUT_DEPTH:
            break

    # Not one whole member, or nothing is open at the end of the last one: the text is not cut off.
    if not last_closing:
        raise ValueError("no JSON that is cut off")
    return decode(text[:last_end] + last_closing)


def in_lines(value: Mapping[str, Any] | Sequence[Any]) -> str:
    """Return an object with one field a line, or a list with one row a line.

    "nothing" for a value that tells people nothing.
    """
    if _is_empty(value):
        return "nothing"
    inner = decode_nested(value)

    # An object around an object, such as {"order": {...}}, is a heading.
    headings: list[str] = []
    while isinstance(inner, Mapping) and len(inner) == 1:
        ((key, item),) = inner.items()
        item = decode_nested(item)
        if not isinstance(item, Mapping) or len(headings) == MAX_DEPTH:
            break
        headings.append(f"{_heading(str(key))}:")
        inner = item

    writer = _Writer()
    lines = writer.lines(inner)
    note = writer.note()
    return "\n".join(filter(None, [*headings, lines, note]))


def in_line(value: Any, *, everything: bool = False) -> str:
    """Return a value in one line.

    With `everything`, ids and addresses stay: a person may have to tell things apart.
    """
    max_fields = MAX_LINE_FIELDS
    if everything:
        max_fields = MAX_CHOICE_FIELDS
    return _Writer(everything).inner(value, depth=1, max_fields=max_fields)


def decode_nested(value: Any) -> Any:
    """Return the object or list in a text that is JSON. Any other value is unchanged."""
    if not isinstance(value, str) or value[:1] not in ("{", "[") or len(value) > MAX_ENCODED_CHARS:
        return value
    try:
        return decode(value)
    except (ValueError, RecursionError):
        return value


def _is_empty(value: Any, depth: int = MAX_DEPTH) -> bool:
    """Return whether a JSON value tells people nothing.

    That is null, an empty text or list, or an object of such values, nested up to `depth` times.
    """
    if isinstance(value, Mapping):
        if not value:
            return True
        return depth > 0 and all(_is_empty(each, depth - 1) for each in value.values())
    return value is None or value == "" or value == []


class _Writer:
    """Writes one JSON value for people. Remembers the labels of the fields that it left out.

    `everything`: leave no field out.
    """

    def __init__(self, everything: bool = False) -> None:
        self._everything = everything
        self._left_out: dict[str, None] = {}

    def note(self) -> str:
        """Return the line that says what was left out; "" if nothing was."""
        labels = list(self._left_out)
        if not labels:
            return ""
        named = ", ".join(labels[:MAX_NAMED_FIELDS])
        more = ""
        if len(labels) > MAX_NAMED_FIELDS:
            more = f" and {len(labels) - MAX_NAMED_FIELDS} more"
        return f"(Technical fields are left out: {named}{more}.)"

    def lines(self, value: Any) -> str:
        """Return an object with one field a line, or a list with one row a line."""
        if isinstance(value, Mapping):
            fields = self._fields(value, is_inner=False)
            lines = [self._line(key, item) for key, item in fields[:MAX_LINES]]
            lines += _more(len(fields) - MAX_LINES, "field")
            return "\n".join(lines) or "nothing"

        rows = [decode_nested(row) for row in value]
        if len(rows) > MAX_OBJECTS and all(_is_number(row) for row in rows):
            return self.inner(rows, depth=1, max_fields=MAX_ROW_FIELDS)
        lines = []
        for row in rows[:MAX_ROWS]:
            lines.append(f"- {self.inner(row, depth=1, max_fields=MAX_ROW_FIELDS)}")
        lines += _more(len(rows) - MAX_ROWS)
        return "\n".join(lines) or "nothing"

    def _line(self, key: str, value: Any) -> str:
        """Return one field of the outermost object.

        The objects of a long list are written below it, one a line.
        """
        label = _heading(key)
        value = decode_nested(value)
        if isinstance(value, str):
            return f"{label}: {_text(value)}"
        if not isinstance(value, list) or not _has_objects(value):
            text = self.inner(_timed(key, value), depth=2, max_fields=MAX_LINE_FIELDS)
            return f"{label}: {text}"

        # A separate writer: if its line is too long, the fields that it left out do not count.
        one_line_writer = _Writer(self._everything)
        text = one_line_writer.inner(value, depth=2, max_fields=MAX_LINE_FIELDS)
        if len(text) > MAX_LIST_CHARS:
            return f"{label}:\n{self.lines(value)}"
        self._left_out.update(one_line_writer._left_out)
        return f"{label}: {text}"

    def inner(self, value: Any, depth: int, max_fields: int) -> str:
        """Return a value in one line.

        `depth` is 1 for a row, and one more for each object around the value. `max_fields` is how
        many fields an object may show.
        """
        value = decode_nested(value)
        if isinstance(value, Mapping):
            return self._object(value, depth, max_fields)
        if isinstance(value, list):
            return self._list(value, depth, max_fields)
        if isinstance(value, bool):
            return "yes" if value else "no"
        if value is None:
            return "none"
        text = " ".join(_text(value).split())
        limit = MAX_INNER_CHARS
        if _WEB_ADDRESS.match(text):
            limit = MAX_ADDRESS_CHARS
        if len(text) <= limit:
            return text
        return f"{text[:limit]}…"

    def _list(self, values: list[Any], depth: int, max_fields: int) -> str:
        """Return a list in one line. Lists inside a list stand in brackets."""
        has_objects = _has_objects(values)
        if depth > MAX_DEPTH and has_objects:
            return _counted(len(values), "value")

        limit = MAX_OBJECTS if has_objects else MAX_VALUES
        texts = []
        for each in map(decode_nested, values[:limit]):
            text = self.inner(each, depth + 1, max_fields)
            if isinstance(each, list):
                text = f"({text})"
            texts.append(text)

        # Commas also part the fields of an object, so such a list needs another sign.
        has_commas = has_objects and any(", " in text for text in texts)
        separator = "; " if has_commas else ", "
        texts += _more(len(values) - limit)
        return separator.join(texts) or "nothing"

    def _object(self, value: Mapping[str, Any], depth: int, max_fields: int) -> str:
        """Return an object in one line: its name, and behind it its other fields in brackets."""
        name = ""
        name_key = _name_key(value)
        if name_key is not None:
            name = self.inner(value[name_key], depth, max_fields)
        if depth > MAX_DEPTH:
            return name or _counted(len(value), "field")

        fields = self._fields(value, is_inner=depth > 1)
        fields = [(key, item) for key, item in fields if key != name_key]
        texts = []
        for key, encoded in fields[:max_fields]:
            item = decode_nested(encoded)
            text = self.inner(_timed(key, item), depth + 1, max(1, max_fields // 2))
            if _has_parts(item):
                text = f"({text})"
            texts.append(f"{label_of(key)} {text}")
        texts += _more(len(fields) - max_fields, "field")
        others = ", ".join(texts)
        if name and others:
            return f"{name} ({others})"
        return name or others or "nothing"

    def _fields(self, value: Mapping[str, Any], *, is_inner: bool) -> list[tuple[str, Any]]:
        """Return the fields that tell people something, each with its key as a text.

        If all are technical, they are all that there is to tell. `is_inner`: the object stands
        inside another one.
        """
        fields = [(str(key), item) for key, item in value.items() if not _is_empty(item)]
        if self._everything:
            return fields
        technical = {
            key for key, item in fields if _is_technical(key, item, value, is_inner=is_inner)
        }
        if len(technical) == len(fields):
            return fields
        self._left_out.update((label_of(key), None) for key, _ in fields if key in technical)
        return [field for field in fields if field[0] not in technical]


def _more(count: int, unit: str = "") -> list[str]:
    """Return the text that says how many more there are, if there are any."""
    if count <= 0:
        return []
    if not unit:
        return [f"and {count} more"]
    return [f"and {_counted(count, f'more {unit}')}"]


def _counted(count: int, unit: str) -> str:
    return f"{count} {unit}{'' if count == 1 else 's'}"


def _heading(key: str) -> str:
    """Return the label at the beginning of a line."""
    label = label_of(key)
    if not _FIELD_NAME.fullmatch(key):
        return label
    return label[:1].upper() + label[1:]


def label_of(key: str) -> str:
    """Return the key of a field as words, such as "updated at" for `updatedAt`.

    Keys that may be data stay.
    """
    if not _FIELD_NAME.fullmatch(key):
        return key
    if key in _PAGES and not key.startswith(("receipt", "hosted", "order")):
        return "link"
    words = []
    for word in _words_of(key):
        lowered = word if word.isupper() else word.lower()
        words.append(lowered.upper() if lowered in _CAPITALS else lowered)
    return " ".join(words)


def _words_of(key: str) -> list[str]:
    words: list[str] = []
    for part in key.split("_"):
        words += filter(None, _CAMEL.split(part))
    return words


def _has_objects(values: Sequence[Any]) -> bool:
    """Return whether a list has objects or lists in it."""
    return any(isinstance(each, list | Mapping) for each in values)


def _has_parts(value: Any) -> bool:
    """Return whether a value is written as several parts, which need brackets inside a line."""
    if isinstance(value, list):
        return len(value) > 1 or any(_has_parts(each) for each in value)
    return isinstance(value, Mapping) and _name_key(value) is None


def _name_key(value: Mapping[str, Any]) -> str | None:
    """Return the key of the field that names an object, None if it has no name."""
    for key in _NAMES:
        if isinstance(value.get(key), str) and value[key]:
            return key
    return None


def _is_technical(key: str, value: Any, siblings: Mapping[str, Any], *, is_inner: bool) -> bool:
    """Return whether a field of an object tells people nothing.

    `siblings` are all fields of the object. `is_inner`: the object stands inside another one.
    """
    if key in _TECHNICAL or key.startswith(_TECHNICAL_PREFIXES):
        return True
    if key == "kind":
        # The type of an object of Google, such as "calendar#event".
        return isinstance(value, str) and "#" in value

    words = [word.lower() for word in _words_of(key)]
    last = words[-1] if words else ""
    if isinstance(value, str) and (last in _ADDRESSES or _WEB_ADDRESS.match(value)):
        return _is_for_programs(key, value, words, siblings, is_inner=is_inner)

    # An id that people would speak, such as "17", tells them something. A long one does not, nor one
    # beside a number for people (_NUMBERS), or beside the name of an inner object.
    is_number = isinstance(value, int) and not isinstance(value, bool)
    is_long = (isinstance(value, str) or is_number) and len(str(value)) > _SPOKEN_ID_CHARS
    is_own_id = len(words) == 1 and last in _IDS
    if is_own_id:
        if any(number in siblings for number in _NUMBERS):
            return True
        return _name_key(siblings) is not None and (is_inner or is_long)
    if isinstance(value, str) and _OPAQUE.fullmatch(value):
        return True
    return last in _IDS and is_long and " " not in str(value)


def _is_for_programs(
    key: str, value: str, words: Sequence[str], siblings: Mapping[str, Any], *, is_inner: bool
) -> bool:
    """Return whether a person could not open an address, or has a better one.

    That is an address of an API, a picture beside a name, and another address beside that of a
    page. `words` are those of the key.
    """
    is_template = "{" in value
    if is_template or _PICTURES & set(words):
        return True
    web = _WEB_ADDRESS.match(value)
    if web is None:
        # A path without its host, such as "/orders/7", opens nothing.
        return value.startswith("/")
    if web["host"].startswith("api.") or _API_PATH.search(web["path"]):
        return True
    if is_inner and _name_key(siblings) is not None:
        return True
    return key not in _PAGES and bool(_PAGES & siblings.keys())


def _is_number(value: Any) -> bool:
    if isinstance(value, str):
        # `decode` returns a number with a fraction as a text.
        return bool(re.fullmatch(r"-?\d+\.\d+(?:[eE][+-]?\d+)?", value))
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: Any) -> str:
    """Return a text or a number, with a time stamp as people write it."""
    text = str(value)
    stamp = _TIMESTAMP.fullmatch(text)
    if stamp is None:
        return text
    zone = (stamp[3] or "").replace("Z", "UTC")
    return f"{stamp[1]} {stamp[2]} {zone}".rstrip()


def _timed(key: str, value: Any) -> Any:
    """Return the time that a number of seconds under such a key means.

    Any other value is unchanged.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    if value not in _TIMES or not _TIME_KEY.fullmatch(key):
        return value
    return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
