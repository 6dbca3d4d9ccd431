"""Screening: withholds tool output that speaks to the model as if it were the user or the operator."""

from __future__ import annotations

import re

#: Phrases of known prompt injections. Cheap and incomplete: the real guard is that side effects need a yes.
_INJECTIONS = re.compile(
    r"(ignore|disregard|forget)\s+(all\s+|any\s+)?(of\s+)?(the\s+|your\s+)?(previous|prior|above|earlier)\s+"
    r"(instructions?|prompts?|messages?|rules)"
    r"|<\s*/?\s*(system|assistant|im_start|im_end)\b"
    r"|^\s*(system|assistant)\s*(prompt|message)?\s*:"
    r"|\byou\s+are\s+now\s+(in\s+)?(a|an|the|developer|dan)\b"
    r"|\bnew\s+(system\s+)?instructions?\s*:",
    re.IGNORECASE | re.MULTILINE,
)


def screen(tool_name: str, output: str) -> str:
    """The output, or a notice in its place when it tries to instruct the model."""
    if not _INJECTIONS.search(output):
        return output
    return f"[output of {tool_name!r} withheld: it contains instructions to the model instead of data]"
