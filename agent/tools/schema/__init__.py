"""JSON Schemas of tools: from type hints, normalized, and adapted to each vendor's API."""
