"""How many plain requests the default selector shows the right tool for, among 112.

    python -m benchmarks.selection
    python -m benchmarks.selection published      the same with operations of GitHub, Stripe, Twilio
    python -m benchmarks.selection conversation   what eight requests cost with 240 tools

`tools.jsonl` has the tools, `requests.jsonl` the requests. The ranking's constants and synonyms were chosen on the part
`open`; of `held_out`, which was written before the ranking, only the figures were looked at.
The requests of `foreign` are in other languages than the tools, and share few words with them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sayso.agent import EmbeddingSelector, Message, Tool
from sayso.agent.messages import Role
from sayso.agent.tools.parameter import ToolParameter
from sayso.agent.toolsets.embedding import NgramEmbedder
from sayso.agent.toolsets.selectors import narrow

PARTS = ("open", "held_out", "foreign")
_FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Request:
    """A user's text, its language, and the tool that fits it."""

    part: str
    language: str
    tool: str
    text: str


def read_tools() -> list[Tool]:
    """Return the catalogue."""
    return [_tool(**json.loads(line)) for line in _lines("tools.jsonl")]


def read_requests(part: str) -> list[Request]:
    """Return the requests of one part of the list."""
    return [
        request
        for line in _lines("requests.jsonl")
        if (request := Request(**json.loads(line))).part == part
    ]


def missed(requests: list[Request], selector: EmbeddingSelector) -> list[Request]:
    """Return the requests whose tool the selector does not show."""
    return asyncio.run(_missed(requests, selector))


async def _missed(requests: list[Request], selector: EmbeddingSelector) -> list[Request]:
    tools, lost = read_tools(), []
    for request in requests:
        shown = await narrow(selector, [Message(Role.USER, request.text)], tools)
        if request.tool not in [tool.name for tool in shown]:
            lost.append(request)
    return lost


def _lines(name: str) -> list[str]:
    return (_FOLDER / name).read_text(encoding="utf-8").splitlines()


def _tool(name: str, description: str, parameters: dict[str, str]) -> Tool:
    described = [ToolParameter(name=key, description=said) for key, said in parameters.items()]
    return Tool(name, description, described, lambda **_: "")


def _table() -> Iterator[str]:
    selectors = {
        "default": EmbeddingSelector(),
        "letters alone": EmbeddingSelector(embedder=NgramEmbedder()),
    }
    yield f"The right tool among the {EmbeddingSelector().top_k} shown, of {len(read_tools())}:"
    yield f"| requests | of them | {' | '.join(f'{name} | ' for name in selectors)} |"
    yield f"|---|---|{'---|---|' * len(selectors)}"
    for part in PARTS:
        requests = read_requests(part)
        found = [len(requests) - len(missed(requests, selector)) for selector in selectors.values()]
        rates = " | ".join(f"{hits} | {hits / len(requests):.0%}" for hits in found)
        yield f"| {part} | {len(requests)} | {rates} |"


def main() -> None:
    """Print the table, or the requests of the part `open` whose tool is not shown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.selection")
    parser.add_argument(
        "what", nargs="?", choices=["requests", "published", "conversation"], default="requests"
    )
    parser.add_argument(
        "--wrong", action="store_true", help="the misses in the part that constants were chosen on"
    )
    chosen = parser.parse_args()
    if chosen.what == "published":
        from benchmarks.selection import published

        print("\n".join([*published.table(), "", *published.agent_table()]))
    elif chosen.what == "conversation":
        from benchmarks.selection.conversation import table  # it needs this module

        for line in table():
            print(line, flush=True)
    elif chosen.wrong:
        lost = missed(read_requests("open"), EmbeddingSelector())
        print("\n".join(f"{request.tool}: {request.text}" for request in lost))
    else:
        print("\n".join(_table()))


if __name__ == "__main__":
    main()
