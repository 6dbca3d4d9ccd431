"""Names concrete classes."""
