"""Config: settings from YAML, the wiring of all parts, and the `sayso` command."""
