"""The signs with which the bot's own lines about an action begin, and which no other text may have.

The outcome of an action stands in a line that begins with one of these signs. A model may write
such a line too, by mistake or because a web page or the result of a tool told it to. Then people
would believe that an action was done. So in all that models and tools write, each of these signs
becomes plain characters, and so does each sign that looks like one. The code that puts such a text
into a message does it (`without_signs`), behind `as_markdown` if the text is no Markdown yet.
Slack's short codes, such as `:x:`, become no signs either (`channels/markdown/dialects.py`).
"""

from __future__ import annotations

import re
from html import unescape

from sayso.channels.markdown.literal import as_kind_of

#: The action was done.
DONE = "✅"
#: The action was not done: the person answered no, or asked for something else.
DENIED = "❌"
#: The action was not done: no answer came in time.
EXPIRED = "⌛"
#: The action failed, was refused, or its outcome is unknown. Behind the sign is the invisible
#: character that asks for color.
WARNING = "⚠️"

#: What stands in place of each sign, and of those that look like it: Unicode's check marks, crosses
#: and ballots, hourglasses and the warning. Markdown shows these plain characters as they are.
_PLAIN = {
    **dict.fromkeys("✅✔✓☑🗸🗹", "(+)"),
    **dict.fromkeys("❌❎✕✖✗✘☒☓🗙🗴🗵🗶🗷", "(-)"),
    **dict.fromkeys("⌛⏳", "(...)"),
    **dict.fromkeys("⚠", "(!)"),
}
#: An entity of HTML, which may stand for a sign.
_ENTITY = r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z]{2,31});"
#: A sign as a character or as an entity, with the invisible character behind it that chooses color
#: or black and white.
_SIGN = re.compile(rf"(?:[{''.join(_PLAIN)}]|{_ENTITY})[\ufe0e\ufe0f]?")


def without_signs(md: str) -> str:
    """Return Markdown with plain characters in place of these signs: "(+) Paid" for "✅ Paid".

    Code is changed in the same way, with the entities in it.
    """
    return as_kind_of(md, _SIGN.sub(_plain, md))


def without_own_sign(line: str) -> str:
    """Return an outcome without the sign with which it begins, if it has one."""
    for sign in (DONE, DENIED, EXPIRED, WARNING):
        if line.startswith(f"{sign} "):
            return line.removeprefix(f"{sign} ")
    return line


def _plain(match: re.Match[str]) -> str:
    """Return the plain characters for a sign; an entity of another character stays."""
    char = unescape(match[0])[:1]
    return _PLAIN.get(char, match[0])
