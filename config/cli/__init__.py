"""One file a command group."""
