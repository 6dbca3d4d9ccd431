"""Text that must be shown literally, embedded in Markdown.

All that the bot says is Markdown. What a tool returns is text, and so are its arguments, paths and
ids: in `__init__.py` the underscores belong to the name. So code that embeds such a text passes it
through `as_markdown`, which escapes it. A tool whose text is Markdown says so with the type
`Markdown`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

#: Characters that are Markdown syntax: links, code, emphasis, entities, escapes. An underscore
#: inside a word and a star between spaces are not. The backslash goes before the second group: the
#: first one is empty here, because only _NUMBER_AT_START has a text before the backslash.
_MARKUP = re.compile(
    r"""()(
        \\(?=[!-/:-@\[-`{-~]|$) | [`\[\]] | <(?=\S|$) | &(?=\#?\w+;) | ~(?=~) | (?<=~)~
        | (?<!\s)\* | \*(?!\s|$) | (?<![^\W_])_ | _(?![^\W_])
    )""",
    re.VERBOSE,
)
#: Markdown syntax at the beginning of a line: headings, quotes, bullets, rules, the second line of
#: a table.
_AT_START = re.compile(
    r"^()(\#(?=\#{0,5}(?:\s|$)) | > | [+-](?=\s|$) | =(?=[=\s]*$) | [|:-](?=[|:\s-]*$))",
    re.VERBOSE,
)
#: The number of an item of a list, and the mark behind it.
_NUMBER_AT_START = re.compile(r"^(\d{1,9})([.)])(?=\s|$)")
#: All places where one of these may match, an indented line, and a line end of other systems.
_MAY_BE_MARKUP = re.compile(
    r"[\\`\[\]<&~*_\r] | ^[\s\#>|+=:-] | ^\d+[.)]", re.VERBOSE | re.MULTILINE
)
#: The scheme of an address that Markdown links by itself.
_SCHEME = re.compile(r"(?<![A-Za-z0-9])https?(?=://)", re.IGNORECASE)
#: The rest of an address, from "://" on. It ends before marks around bold or struck text, and
#: before what no address has unencoded: quotation marks, and the punctuation of Chinese and
#: Japanese, which no space follows.
_REST = re.compile(
    r"""://(?:(?!\*\*|~~)[^\s<>"`|\\\[\]\u00ab\u00bb\u201c-\u201e\u3001\u3002\u3008-\u3011\u3014\u3015"""
    r"""\uff01\uff08\uff09\uff0c\uff1a\uff1b\uff1f])+"""
)
#: Punctuation of the sentence that may follow an address. The last four are an ellipsis, an
#: apostrophe, and the comma and the question mark of Arabic.
_AFTER_ADDRESS = ".,;:!?*_~'\u2026\u2019\u060c\u061f"
#: The replacement of a match of these three: its first group, a backslash, its second group.
_WITH_BACKSLASH = r"\1\\\2"
_ENTITY = re.compile(r"&#?\w+;")
#: An escape, a space that is encoded, or backticks that may begin code.
_ESCAPE_OR_CODE = re.compile(r"\\(?P<mark>[!-/:-@\[-`{-~])|&#(?P<space>\d{1,5});|(?P<code>`+)")
_BACKTICKS = re.compile(r"`+")
_LINE_END = re.compile(r"\r\n?|\n")


class Markdown(str):
    """Text of a tool that is Markdown: `return Markdown("**3** invoices")`.

    All other text of a tool is shown literally. A result, a preview and a text of `stash_pending`,
    `remind` and `schedule_reply` may be of this type. It must hold no text of users or other
    systems, unless that has gone through `as_markdown`.
    """

    __slots__ = ()


def as_markdown(text: str) -> Markdown:
    """Return Markdown that shows a text literally, line by line. Markdown stays unchanged."""
    if isinstance(text, Markdown):
        return text
    if not _may_be_markup(text):
        return Markdown(text)
    return Markdown("\n".join(_escaped_lines(text)))


def as_text(md: str) -> str:
    """Return Markdown without the escapes of `as_markdown`, as text to print.

    Formatting that a model or a tool wrote, such as `**bold**`, stays, and so does code between
    backticks. Do not show the text as Markdown.
    """
    if not _ESCAPE_OR_CODE.search(md):
        return md

    # Where the last run of so many backticks begins, by their number. Without it, each run that is
    # never closed would be searched for up to the end of the text.
    last_runs = {len(run[0]): run.start() for run in _BACKTICKS.finditer(md)}
    parts = []
    position = 0
    while token := _ESCAPE_OR_CODE.search(md, position):
        parts.append(md[position : token.start()])
        position = token.end()
        if token["mark"]:
            parts.append(token["mark"])
        elif token["code"]:
            # Code ends at the next run of as many backticks. Without one they are text.
            size = len(token["code"])
            if last_runs.get(size, -1) >= position:
                closing = re.compile(rf"(?<!`)`{{{size}}}(?!`)").search(md, position)
                position = closing.end() if closing else position
            parts.append(md[token.start() : position])
        else:
            space = chr(int(token["space"]))
            parts.append(space if space.isspace() else token[0])
    return "".join([*parts, md[position:]])


def as_kind_of(original: object, text: str) -> str:
    """Return a text that was made from another one: as Markdown if the original is Markdown."""
    if isinstance(original, Markdown):
        return Markdown(text)
    return text


def address_after(text: str, scheme_end: int, end: int | None = None) -> str:
    """Return the rest of an address from "://" on, "" if there is none.

    `scheme_end` is the place behind the scheme, and `end` where the text ends, None for its whole
    length. The punctuation of the sentence and a closing bracket around the address are no part of
    it.
    """
    if end is None:
        end = len(text)
    match = _REST.match(text, scheme_end, end)
    rest = match[0] if match else ""

    size = len(rest)
    unopened = rest.count(")") - rest.count("(")
    while size:
        last = rest[size - 1]
        # A bracket that was opened inside the address belongs to it.
        closes_outer_bracket = last == ")" and unopened > 0
        if not (last in _AFTER_ADDRESS or closes_outer_bracket):
            break
        if closes_outer_bracket:
            unopened -= 1
        size -= 1
    if size > len("://"):
        return rest[:size]
    return ""


def _may_be_markup(text: str) -> bool:
    """Return whether a text has a character that may be Markdown syntax where it stands."""
    return _MAY_BE_MARKUP.search(text) is not None


def _escaped_lines(text: str) -> Iterator[str]:
    """Yield the lines of a text, escaped."""
    for line in _LINE_END.split(text):
        words = line.lstrip()
        indent = line[: len(line) - len(words)]
        has_indent = indent != ""
        # Markdown drops the spaces at the beginning of a line, or reads them as code. It keeps them
        # if the first one is encoded.
        if has_indent and words:
            indent = f"&#{ord(indent[0])};{indent[1:]}"
        yield indent + escaped_line(words, at_start=not has_indent, keeps_addresses=True)


def escaped_line(line: str, *, at_start: bool = True, keeps_addresses: bool = False) -> str:
    """Return one line with a backslash before each character that Markdown would act on.

    * `at_start`: whether the line begins a line of the message.
    * `keeps_addresses`: whether a bare address (`https://...`) stays without backslashes, so that
      it is shown as one link. If a long text is sent as two messages that part inside the address,
      its second half is read as Markdown: an `_` or a `*` in it may vanish. So addresses are
      escaped in previews of tool calls, where each character counts.
    """
    parts = []
    position = 0
    addresses: list[tuple[int, int]] = []
    if keeps_addresses:
        addresses = _addresses(line)
    for start, end in addresses:
        # The pattern does not see the address behind this slice. So an opening star before an
        # address has no backslash. It opens nothing, because each closing star has one.
        parts.append(_MARKUP.sub(_WITH_BACKSLASH, line[position:start]))
        parts.append(line[start:end])
        position = end
    parts.append(_MARKUP.sub(_WITH_BACKSLASH, line[position:]))

    text = "".join(parts)
    if at_start:
        text = _AT_START.sub(_WITH_BACKSLASH, text)
        text = _NUMBER_AT_START.sub(_WITH_BACKSLASH, text)
    return text


def _addresses(line: str) -> list[tuple[int, int]]:
    """Return where the bare addresses of a line begin and end."""
    addresses = []
    position = 0
    for scheme in _SCHEME.finditer(line):
        # This scheme is a part of the address before.
        if scheme.start() < position:
            continue
        rest = address_after(line, scheme.end())
        # Markdown would decode an entity in it, so such an address is escaped like other text. An
        # entity at its end is none: `address_after` leaves its ";" out, for our parser too.
        if rest and not _ENTITY.search(rest):
            position = scheme.end() + len(rest)
            addresses.append((scheme.start(), position))
    return addresses
