"""Names: what a source calls its tools, made into names that every vendor accepts."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

#: Characters of a name that every vendor accepts.
MAX_NAME_CHARS = 64
#: Characters of the digest that keeps two names apart.
DIGEST_CHARS = 8
#: Tools that are taken from one source; more would leave a model no room to choose.
MAX_TOOLS = 256
#: Characters of a description that reach the model.
MAX_DESCRIPTION_CHARS = 2000


@dataclass(frozen=True, slots=True)
class Choice:
    """Which of a source's tools are taken: shell patterns over the source's own names; no `include` means all."""

    include: Sequence[str] | None = None
    exclude: Sequence[str] = ()

    def takes(self, name: str) -> bool:
        """Whether the tool of this name is taken."""
        return (self.include is None or matches(self.include, name)) and not matches(self.exclude, name)


def matches(patterns: Sequence[str], *names: str) -> bool:
    """Whether one of the names matches one of the shell patterns."""
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


def legal_names(names: Sequence[str], namespace: str = "") -> dict[str, str]:
    """For each name its legal one, with the namespace in front, no two alike, whatever the order they come in.

    A name that is legal keeps it. One that is not, and whose legal form is another's too, gets a digest.
    """
    whole = {name: f"{namespace}-{name}" if namespace else name for name in names}
    plain = {name: re.sub(r"[^A-Za-z0-9_-]", "_", text) or "_" for name, text in whole.items()}
    held = Counter(text[:MAX_NAME_CHARS] for text in plain.values())
    return {name: _distinct(text, whole[name], held[text[:MAX_NAME_CHARS]] > 1) for name, text in plain.items()}


def _distinct(plain: str, whole: str, is_shared: bool) -> str:
    fits = len(plain) <= MAX_NAME_CHARS
    if fits and (plain == whole or not is_shared):
        return plain
    return f"{plain[: MAX_NAME_CHARS - DIGEST_CHARS - 1]}-{digest(whole)}"


def digest(value: Any) -> str:
    """A short hash of anything JSON-able: another definition has another one."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST_CHARS]


def described(text: str | None, name: str) -> str:
    """A description within bounds; a tool without one is described by its name."""
    text = (text or "").strip() or f"The tool {name!r}; its source does not describe it."
    return text if len(text) <= MAX_DESCRIPTION_CHARS else text[: MAX_DESCRIPTION_CHARS - 3] + "..."
