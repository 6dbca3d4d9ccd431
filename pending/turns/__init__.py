"""Values of one turn: what it reads and all it may change."""
