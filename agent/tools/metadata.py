"""ToolMetadata: how a tool wants to be run, and what it is filed under (seed: Tool, metadata)."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum

#: The `source` of tools that write into what an agent remembers.
MEMORY = "memory"


class ToolTag(StrEnum):
    """What tools are commonly told apart by.

    `DESTRUCTIVE` is a hint that a yes is wanted: a policy's `allow` overrules it, which `requires_approval` never is.
    """

    READ_ONLY = "read_only"
    DESTRUCTIVE = "destructive"
    NETWORK = "network"
    FILE_SYSTEM = "file_system"
    SLOW = "slow"
    PRIVILEGED = "privileged"


@dataclass(frozen=True, slots=True)
class ToolMetadata:
    """Hints for whoever runs a tool, and its classification.

    `is_async` is found out by the Tool itself. One that is not `is_concurrency_safe` never runs beside another call of
    the same answer. `timeout` is in seconds, `max_result_size` in characters of what a model reads of one result.
    `think_augment` asks the model for a `toolcall_reason` with each call; None follows the registry. `source` says
    where a tool is from, such as "mcp".
    """

    is_async: bool = False
    is_concurrency_safe: bool = True
    timeout: float | None = None
    tags: AbstractSet[ToolTag] = frozenset()
    custom_tags: AbstractSet[str] = frozenset()
    think_augment: bool | None = None
    max_result_size: int | None = None
    source: str = "native"
    source_detail: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tags", frozenset(ToolTag(tag) for tag in self.tags))
        object.__setattr__(self, "custom_tags", frozenset(self.custom_tags))
        if self.timeout is not None and not self.timeout > 0:
            raise ValueError(f"timeout={self.timeout!r} leaves a tool no time: give seconds above 0, or None")
        if self.max_result_size is not None and self.max_result_size < 1:
            raise ValueError(
                f"max_result_size={self.max_result_size!r} leaves nothing to read: give 1 or more, or None"
            )

    @property
    def all_tags(self) -> frozenset[str]:
        """Both kinds of tags, as text."""
        return frozenset(map(str, self.tags)) | frozenset(self.custom_tags)
