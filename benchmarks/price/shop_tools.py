"""The shop's tools as Sayso's, for `tools` in the YAML."""

from __future__ import annotations

from benchmarks.price.shop import DANGEROUS, TOOLS
from sayso.agent import Tool, ToolRegistry

REGISTRY = ToolRegistry()
for _function in TOOLS:
    REGISTRY.register(Tool.from_function(_function, requires_approval=_function.__name__ == DANGEROUS))
