"""JSON Schemas of tools, and what vendors make of them."""
