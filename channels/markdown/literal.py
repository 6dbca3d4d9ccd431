"""Text that must be shown literally, embedded in Markdown.

That is paths, identifiers, and results and arguments of tools.

All that the bot says is Markdown. What a tool returns is text: in `__init__.py` the underscores
belong to the name. So whatever embeds such a text passes it through `as_markdown`. A tool whose
text is Markdown says so with the type `Markdown`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

#: Characters that are Markdown syntax: links, code, emphasis, entities, escapes. An underscore
#: inside a word and a star between spaces are not.
_MARKUP = re.compile(
    r"""()(
        \\(?=[!-/:-@\[-`{-~]|$) | [`\[\]] | <(?=\S|$) | &(?=\#?\w+;) | ~(?=~) | (?<=~)~
        | (?<!\s)\* | \*(?!\s|$) | (?<![^\W_])_ | _(?![^\W_])
    )""",
    re.VERBOSE,
)
#: Markdown syntax at the beginning of a line: headings, quotes, bullets, rules, the second line of
#: a table; and numbers of a list.
_AT_START = re.compile(
    r"^()(\#(?=\#{0,5}(?:\s|$)) | > | [+-](?=\s|$) | =(?=[=\s]*$) | [|:-](?=[|:\s-]*$))",
    re.VERBOSE,
)
_NUMBER_AT_START = re.compile(r"^(\d{1,9})([.)])(?=\s|$)")
#: All places where one of these may match, an indented line, and a line end of other systems.
_MAY_BE_MARKUP = re.compile(
    r"[\\`\[\]<&~*_\r] | ^[\s\#>|+=:-] | ^\d+[.)]", re.VERBOSE | re.MULTILINE
)
#: The scheme of an address that Markdown links by itself, and what follows the scheme.
_SCHEME = re.compile(r"(?<![A-Za-z0-9])https?(?=://)", re.IGNORECASE)
#: It ends before marks around bold or struck text, and before what no address has unencoded:
#: quotation marks, and the punctuation of Chinese and Japanese, which no space follows.
_REST = re.compile(
    r"""://(?:(?!\*\*|~~)[^\s<>"`|\\\[\]\u00ab\u00bb\u201c-\u201e\u3001\u3002\u3008-\u3011\u3014\u3015"""
    r"""\uff01\uff08\uff09\uff0c\uff1a\uff1b\uff1f])+"""
)
#: Punctuation of the sentence that may follow an address. The last four are an ellipsis, an
#: apostrophe, and the comma and the question mark of Arabic.
_AFTER_ADDRESS = ".,;:!?*_~'\u2026\u2019\u060c\u061f"
_ENTITY = re.compile(r"&#?\w+;")
#: An escape, a space that is encoded, or backticks that may begin code.
_ESCAPE_OR_CODE = re.compile(r"\\(?P<mark>[!-/:-@\[-`{-~])|&#(?P<space>\d{1,5});|(?P<code>`+)")
_BACKTICKS = re.compile(r"`+")
_LINE_END = re.compile(r"\r\n?|\n")


class Markdown(str):
    """Text of a tool that is Markdown: `return Markdown("**3** invoices")`.

    All other text is shown literally.

    A result, a preview and a text of `stash_pending`, `remind` and `schedule_reply` may be of this
    type. It must hold no text of users or other systems, unless that has gone through
    `as_markdown`.
    """

    __slots__ = ()


def as_markdown(text: str) -> Markdown:
    """Return a text as Markdown that shows it as it is, line by line; Markdown itself unchanged."""
    if isinstance(text, Markdown):
        return text
    if not _may_be_markup(text):
        return Markdown(text)
    return Markdown("\n".join(_escaped_lines(text)))


def as_text(md: str) -> str:
    """Return Markdown without the escapes of `as_markdown`, as text to print:
    the names in it read as they are.

    Formatting that somebody wrote, such as `**bold**`, stays, and so does all code. Do not show the
    text as Markdown.
    """
    if not _ESCAPE_OR_CODE.search(md):
        return md
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
    """Return a text that was made of another one: as Markdown if the original is Markdown."""
    if isinstance(original, Markdown):
        return Markdown(text)
    return text


def address_after(text: str, scheme_end: int, end: int | None = None) -> str:
    """Return the rest of an address whose scheme ends before "://", "" if there is none.

    The punctuation of the sentence and the closing bracket around the address are not part of it.
    """
    match = _REST.match(text, scheme_end, len(text) if end is None else end)
    rest = match[0] if match else ""
    size = len(rest)
    unopened = rest.count(")") - rest.count("(")
    while size and (rest[size - 1] in _AFTER_ADDRESS or (rest[size - 1] == ")" and unopened > 0)):
        unopened -= rest[size - 1] == ")"
        size -= 1
    if size > len("://"):
        return rest[:size]
    return ""


def _may_be_markup(text: str) -> bool:
    """Return whether a text has any character that may be Markdown syntax where it stands.

    Most results have none.
    """
    return _MAY_BE_MARKUP.search(text) is not None


def _escaped_lines(text: str) -> Iterator[str]:
    for line in _LINE_END.split(text):
        words = line.lstrip()
        indent = line[: len(line) - len(words)]
        # Markdown drops the spaces at the beginning of a line, or takes them for code,
        # but not one that is encoded.
        kept_indent = indent
        if indent and words.strip():
            kept_indent = f"&#{ord(indent[0])};{indent[1:]}"
        yield kept_indent + escaped(words, at_start=not indent, keeps_addresses=True)


def escaped(line: str, *, at_start: bool = True, keeps_addresses: bool = False) -> str:
    """Return a line with a backslash before each character that Markdown would act on.

    `at_start`: the line begins a line of the message. `keeps_addresses`: no backslash stands in a
    bare address, so that it is one link. It may lose a mark then if it is so long that two messages
    share it.
    """
    parts = []
    position = 0
    for scheme in _SCHEME.finditer(line) if keeps_addresses else ():
        if scheme.start() < position:  # it is inside of the address before
            continue
        rest = address_after(line, scheme.end())
        if rest and not _ENTITY.search(rest):  # a backslash would end the link there
            end = scheme.end() + len(rest)
            parts += [
                _MARKUP.sub(r"\1\\\2", line[position : scheme.start()]),
                line[scheme.start() : end],
            ]
            position = end
    text = "".join(parts) + _MARKUP.sub(r"\1\\\2", line[position:])
    for pattern in (_AT_START, _NUMBER_AT_START) if at_start else ():
        text = pattern.sub(r"\1\\\2", text)
    return text
