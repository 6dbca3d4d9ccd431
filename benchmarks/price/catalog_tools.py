"""The tools of the catalog, for `tools` in the YAML."""

from __future__ import annotations

from benchmarks.price.catalog import all_tools
from sayso.agent import ToolRegistry

REGISTRY = ToolRegistry()
REGISTRY.replace_source("catalog", all_tools())
