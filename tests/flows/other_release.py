"""Runs `sayso` as a later release whose records have version 2: `python -m tests.flows.other_release VERSION ARGS...`.

VERSION is the one that it writes: 1 for the next release, which can only read version 2, and 2 for the one after it. A
history of version 2 names its messages `lines`, so that a reader of version 1 finds none.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any


def main() -> None:
    """Change what the records are, and run the command."""
    from sayso.infra import records

    records.VERSION, records.READABLE = int(sys.argv.pop(1)), range(1, 3)

    from sayso.workers import recovery

    recovery.own_version = lambda: f"99.{records.VERSION}"

    from sayso.agent.memory.conversation import ConversationMemory
    from sayso.ops.cli.main import main as sayso

    write, read = ConversationMemory.to_dict, ConversationMemory.from_dict

    def to_dict(memory: ConversationMemory) -> dict[str, Any]:
        data = write(memory)
        return {**data, "lines": data["messages"], "messages": []} if records.VERSION == 2 else data

    def from_dict(data: Mapping[str, Any]) -> ConversationMemory:
        return read({**data, "messages": data.get("lines", data["messages"])})

    ConversationMemory.to_dict = to_dict  # type: ignore[method-assign]
    ConversationMemory.from_dict = from_dict  # type: ignore[method-assign, assignment]
    sayso()


if __name__ == "__main__":
    main()
