"""Examples: what a project built on Sayso looks like."""
