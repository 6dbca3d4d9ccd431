"""What a conversation costs: tokens, model calls and messages, beside pydantic-ai and LangChain.

    python -m benchmarks.price [chats] [catalog] [results] [messages] [choices]

A local server speaks the vendors' APIs, answers as a script says, and records each request as the
vendors' own libraries send it; no key and no network is needed. Units are tokens at the full price
(`benchmarks.price.units`). Sayso runs as a user would run it: web, worker, Redis and a chat
platform, wired from a YAML.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Iterator

from benchmarks.price import catalog, chats, choices, messages, results
from benchmarks.price.peers import peer_versions
from benchmarks.price.rows import HEAD, Row
from benchmarks.price.units import Encode, best_encoding

#: The parts of the table, in order.
PARTS: dict[str, Callable[[Encode], Iterator[Row]]] = {
    "chats": chats.rows,
    "catalog": catalog.rows,
    "results": results.rows,
    "messages": messages.rows,
    "choices": choices.rows,
}


def main() -> None:
    """Print the table, or the named parts of it, row by row."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.price")
    help_text = "the parts of the table; all by default"
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help=help_text)
    parts = parser.parse_args().parts or PARTS
    logging.disable(logging.WARNING)
    encode, encoding = best_encoding()
    versions = peer_versions().items()
    peers = ", ".join(f"{name} {installed or 'is not installed'}" for name, installed in versions)
    print(f"Units are tokens at the full price; {encoding}. {peers}.\n\n{HEAD}", flush=True)
    for part in parts:
        for row in PARTS[part](encode):
            print(row, flush=True)


if __name__ == "__main__":
    main()
