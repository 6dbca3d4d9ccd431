"""The tool with a very long result, for `tools` in the YAML."""

from __future__ import annotations

from benchmarks.price.results import export_orders
from sayso.agent import Tool

EXPORT_ORDERS = Tool.from_function(export_orders)
