"""The `sayso` commands."""
