"""Tools from elsewhere, and which of them a model sees."""
