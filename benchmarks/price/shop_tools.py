"""The shop's tools as Sayso's, for `tools` in the YAML."""

from __future__ import annotations

from benchmarks.price.shop import DANGEROUS, TOOLS
from sayso.agent import Tool, ToolRegistry

REGISTRY = ToolRegistry()
REGISTRY.replace_source(
    "shop",
    [Tool.from_function(each, requires_approval=each.__name__ == DANGEROUS) for each in TOOLS],
)
