"""Pictures of every reply style on every platform, from the messages of the real adapters: `make pictures`."""

from __future__ import annotations

import asyncio
import html
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from sayso.agent.channel.questions import closed_question
from sayso.channels.base import Channel
from sayso.channels.console.outgoing import page_html
from sayso.channels.console.terminal import Terminal
from sayso.channels.types import Button, Delivery, Media, Receipt, Reply
from sayso.testing.platforms.fake_platforms import FakePlatforms
from tests.browser import screens
from tests.browser.demo import FLAGS, chromium
from tests.channels.harness import CONSOLE, EVERY, MemoryMedia, Platform

HERE = Path(__file__).parent
IMAGES = HERE.parents[1] / "docs" / "img"
CONSOLE_CSS = HERE.parents[1] / "channels" / "console" / "static" / "console.css"

CODE = "```python\ndef due(invoice):\n    return invoice.total_net - invoice.paid\n```"
WIDE = """| Invoice | Customer | Due | Amount | Status |
|---|---|---|--:|---|
| INV-42 | Ada Lovelace Ltd | 2026-11-30 | 1,200.00 EUR | open |
| INV-43 | Hopper & Sons | 2026-12-04 | 890.50 EUR | overdue |"""
LONG = "\n\n".join(
    f"Paragraph {number} of a report that is **too long** for one message."
    for number in range(1, 100)
)
#: The replies in each picture, by title.
SAMPLES: dict[str, Reply] = {
    "Table": Reply(
        "Two are open:\n\n| Invoice | Amount |\n|---|--:|\n| INV-42 | 1,200.00 |\n| INV-7 | 89.50 |"
    ),
    "Wide table": Reply(WIDE),
    "Nested list": Reply(
        "# To do\n1. Call *Ada*\n   - about INV-42\n     - and its **discount**\n2. ~~Pay Hopper~~"
    ),
    "Code": Reply(f"Set `total_net` like this:\n\n{CODE}"),
    "Links": Reply(
        "See [the docs](https://e.org/wiki/Ada_(disambiguation)) and https://e.org/a_b_c?x=1&y=_2_b."
    ),
    "Emoji": Reply("Done 👍🏽 👨‍👩‍👧 🇩🇪 ✅ — *three* left"),
    "Right to left": Reply(
        "שלום **עדה**, החשבונית INV-42 מוכנה:\n\n- סכום: 1,200 EUR\n- [פרטים](https://e.org/inv)"
    ),
    "Quote": Reply("> The invoice is **late**.\n> Please pay.\n\nShall I answer?"),
    "Broken markup": Reply(
        "**bold without end, `code too, [a link](https://e.org and 2*3*4 = 24, <b>snake_case_name</b>"
    ),
    "Long reply": Reply(LONG),
    "Question": Reply(
        "Delete **INV-42** (Ada Lovelace Ltd, 120.00 EUR)?",
        (Button("Yes", "c", "danger", "Delete **INV-42**"), Button("No", "x")),
    ),
    "Decided": Reply("Invoice INV-42 is deleted."),
    "File": Reply(
        "Here is your invoice.", media=Media("pdf", "application/pdf", "INV-42.pdf", stored=True)
    ),
}
RENDERERS: Mapping[str, Callable[[str], str]] = {
    "whatsapp": screens.whatsapp,
    "telegram": screens.telegram,
    "slack": screens.slack,
    "console": page_html,
    "terminal": screens.terminal,
}
WIDTHS = {"slack": 760, "terminal": 760}


def main() -> None:
    """Take one picture for each platform, and one of the terminal."""
    media = MemoryMedia()
    with FakePlatforms() as platforms, sync_playwright() as session:
        browser = session.chromium.launch(executable_path=chromium(), args=list(FLAGS))
        pages = {platform.name: page_of(platform, media, platforms) for platform in EVERY}
        for name, content in {**pages, "terminal": terminal_page(media)}.items():
            page = browser.new_page(
                viewport={"width": WIDTHS.get(name, 390), "height": 400}, device_scale_factor=1.5
            )
            page.set_content(content)
            page.screenshot(path=IMAGES / f"reply-styles-{name}.png", full_page=True)
        browser.close()
    media.close()


def page_of(platform: Platform, media: MemoryMedia, platforms: FakePlatforms) -> str:
    """Return the HTML page with all samples as this platform shows them."""
    channel = platform.open(media, platforms)
    css = CONSOLE_CSS.read_text() if platform is CONSOLE else ""
    return _page(platform.name, css, lambda reply: _sent(platform, channel, platforms, reply))


def terminal_page(media: MemoryMedia) -> str:
    """Return the HTML page with all samples as the terminal prints them."""

    def shown(reply: Reply) -> Sequence[Mapping[str, Any]]:
        printed: list[str] = []
        with tempfile.TemporaryDirectory() as folder:
            Terminal(
                folder=Path(folder), read_file=media.read, print_text=printed.append, styled=True
            ).show(reply)
        texts = [re.sub(r"saved \S*/", "saved .sayso/chat/", text.rstrip("\n")) for text in printed]
        return [{"text": text, "buttons": [], "media": None} for text in texts]

    return _page("terminal", "", shown)


def _page(name: str, css: str, messages_of: Callable[[Reply], Sequence[Mapping[str, Any]]]) -> str:
    body = "".join(
        f"<h6>{title}</h6>{''.join(_shown(name, messages_of(reply), reply))}"
        for title, reply in SAMPLES.items()
    )
    style = css + (HERE / "screens.css").read_text()
    return (
        f'<meta charset="utf-8"><style>{style}</style><body class="skin {name}"><main>{body}</main>'
    )


def _shown(name: str, sent: Sequence[Mapping[str, Any]], reply: Reply) -> Iterator[str]:
    messages = [_bubble(name, message) for message in sent]
    for number, message in enumerate(messages, 1):
        if len(messages) < 3 and reply.text != LONG:
            yield message
        elif number in (1, len(messages)):  # of a long reply only the cuts are interesting
            yield f'<div class="{"end" if number == 1 else "start"}">{message}</div>'
        elif number == 2:
            yield f"<h6>… {len(messages) - 2} more …</h6>"


def _sent(
    platform: Platform, channel: Any, platforms: FakePlatforms, reply: Reply
) -> Sequence[Mapping[str, Any]]:
    """Return the messages of a reply as the platform received them, with its own markup."""
    before = len(platform.seen(channel, platforms))
    if reply is SAMPLES["Decided"]:
        _decide(channel, platform)
    for piece in channel.split(reply):
        _send(channel, platform, piece)
    return [
        {**message, "text": _raw(platform, message)}
        for message in platform.seen(channel, platforms)[before:]
    ]


def _decide(channel: Channel, platform: Platform) -> None:
    """Ask, and close the question's message as the agent does before it reports the outcome."""
    question = SAMPLES["Question"]
    asked = _send(channel, platform, question)
    for piece in channel.split(closed_question(asked.message_id, question.text, "done", "Yes")):
        _send(channel, platform, piece)


def _send(channel: Channel, platform: Platform, piece: Reply) -> Receipt:
    """Send one piece, in a separate thread because Playwright occupies this thread's event loop."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(
            asyncio.run, channel.send(Delivery("d", platform.conversation, piece))
        ).result()


def _raw(platform: Platform, message: Mapping[str, Any]) -> str:
    raw = message.get("raw") or {}
    return str(
        (raw.get("text") or raw.get("caption") or "")
        if platform.name == "telegram"
        else message["text"]
    )


def _bubble(name: str, message: Mapping[str, Any]) -> str:
    """Return the HTML of one message in this platform's style."""
    words = (
        f'<div class="text" dir="auto">{RENDERERS[name](message["text"])}</div>'
        if message["text"]
        else ""
    )
    filename = html.escape(message["media"]["filename"]) if message["media"] else ""
    file = f'<div class="attached"><b>PDF</b><span>{filename}</span></div>' if filename else ""
    styles = {button.data: button.style for button in SAMPLES["Question"].buttons}
    buttons = "".join(
        f'<button class="{styles[each["data"]]}">{html.escape(each["label"])}</button>'
        for each in message["buttons"]
    )
    row = f'<div class="buttons">{buttons}</div>' if buttons else ""
    return f'<div class="message bot"><div class="bubble">{file}{words}</div>{row}</div>'


if __name__ == "__main__":
    main()
