"""Replies: the cost of splitting 100,000 characters for a platform, beside one parse of the text by markdown-it.

python -m benchmarks.replies
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import cycle, islice

from markdown_it import MarkdownIt

from benchmarks.table import HEAD, Row, show
from sayso.channels.markdown.convert import (
    slack_mrkdwn,
    telegram_html,
    telegram_length,
    whatsapp_text,
)
from sayso.channels.markdown.split import split

SIZE = 100_000
#: The repeated texts: typical model output first, then text that is hard to parse.
KINDS = {
    "report": "## Part\n\nSome **words**, a [link](https://e.org/a_b) and `code`: 5 < 6 & 7. 👍🏽\n- x\n  - y\n\n",
    "table": "| Invoice | Amount |\n|---|--:|\n" + "| INV-42 | 1,200.00 |\n" * 200 + "\n",
    "code": "```py\n" + "x = [1, 2]  # **no** markup\n" * 300 + "```\n",
    "brackets": "[",
    "images": "![",
    "links in links": "[" * 99 + "](x)",
    "emphasis": "*a* ",
    "open emphasis": "*a **b ",
    "code marks": "`",
    "quotes": "> ",
    "one quote": "> " * 19 + "a\n" + "b\n" * 500,
    "lists": "- ",
    "items": "- - - a\n",
    "bars": "| a ",
    "small tables": "a|b\n-|-\n",
    "hollow table": "a|" * 300 + "\n" + "-|" * 300 + "\n" + "b\n" * 100,
    "lines": "a\n",
    "flags": "🇩🇪",
    "ampersands": "&",
    "backslashes": "\\",
}
#: The renderer, the limit of one piece, and the function that measures a piece.
PLATFORMS: dict[str, tuple[Callable[[str], str], int, Callable[[str], int]]] = {
    "Telegram": (telegram_html, 4096, telegram_length),
    "Slack": (slack_mrkdwn, 3000, lambda md: len(slack_mrkdwn(md))),
    "WhatsApp": (whatsapp_text, 1600, lambda md: len(whatsapp_text(md))),
}


def long_text(part: str, size: int = SIZE) -> str:
    """Return the text repeated up to this many characters."""
    return "".join(islice(cycle(part), size))


def main() -> None:
    """Print the table."""
    print(HEAD)
    for kind, part in KINDS.items():
        text = long_text(part)
        floor = _seconds(lambda text=text: MarkdownIt("commonmark").enable("table").parse(text))
        show(_row(kind, name, text, floor) for name in PLATFORMS)


def _row(kind: str, name: str, text: str, floor: float) -> Row:
    render, limit, measure = PLATFORMS[name]
    ours = _seconds(lambda: [render(piece) for piece in split(text, limit, measure)])
    return Row(f"{kind}, {name}", f"{ours:.2f} s", f"{floor:.2f} s", ours / floor)


def _seconds(work: Callable[[], object]) -> float:
    """Return the processor time."""
    began = time.process_time()
    work()
    return time.process_time() - began


if __name__ == "__main__":
    main()
