"""The keys of the tables in docs/reference/redis.md, for tests that try something with one key of each kind."""

from __future__ import annotations

import re
from pathlib import Path


def documented_keys() -> list[tuple[str, str]]:
    """Return each key of docs/reference/redis.md, and its type."""
    text = (Path(__file__).parents[2] / "docs/reference/redis.md").read_text()
    table = text.partition("## Keys")[2].partition("### Several bots")[0]
    rows = re.findall(r"(?m)^\| (`sayso:.*?) \| ([a-z ,]+) \|", table)
    keys = [
        (key, kinds.split(", "))
        for names, kinds in rows
        for key in re.findall(r"`(sayso:[^`]+)`", names)
    ]
    return [(key, kinds[0]) for key, kinds in keys] + [("sayso:{N}:job:<conversation>", "string")]
