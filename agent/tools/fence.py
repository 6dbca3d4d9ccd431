"""Fence: a frame around text from outside, which that text cannot close."""

from __future__ import annotations

import hashlib
import re
from itertools import count

from sayso.pending.unseen import UNSEEN

#: Hex digits of a boundary.
BOUNDARY_CHARS = 12

#: What a reader does not see and a model does; tags spell ASCII so.
HIDDEN = re.compile(f"[{UNSEEN}]")
#: What chat templates and vendors' own tool calls are made of, and what looks like our own frame.
_TOKENS = re.compile(
    r"<\|[^|<>\n]{1,40}\|>|\[/?INST\]|<</?SYS>>|</?s>|</?(?:start|end)_of_turn>|</?tool_(?:call|response)s?>|<{3,}|>{3,}",
    re.IGNORECASE,
)
_FENCED = re.compile(r"^<<<data ([0-9a-f]+)>>>\n(.*)\n<<<end of data \1>>>$", re.DOTALL | re.MULTILINE)
_INERT = str.maketrans("<>[]", "\u2039\u203a\u27e6\u27e7")


def fenced(text: str) -> str:
    """The text between two lines that share a boundary which does not occur in it; see `inert`."""
    body = inert(text)
    boundary = _boundary(body)
    return f"<<<data {boundary}>>>\n{body}\n<<<end of data {boundary}>>>"


def unfenced(text: str) -> str:
    """Return what stands inside the first fence of a text, for a person; the text itself where it has none."""
    found = _FENCED.search(text)
    return found[2] if found else text


def inert(text: str) -> str:
    """The text without hidden characters; special tokens of models can still be read, and are none any more."""
    return _TOKENS.sub(lambda token: token[0].translate(_INERT), HIDDEN.sub("", text))


def _boundary(body: str) -> str:
    """The first of the body's digests that does not occur in it: the same text has the same frame in every attempt."""
    for number in count():
        boundary = hashlib.sha256(f"{number}:{body}".encode(errors="surrogatepass")).hexdigest()[:BOUNDARY_CHARS]
        if boundary not in body:
            return boundary
    raise AssertionError("unreachable")  # a text holds finitely many boundaries
