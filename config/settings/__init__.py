"""The YAML."""
