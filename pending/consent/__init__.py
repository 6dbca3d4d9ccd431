"""Is this message a yes?."""
