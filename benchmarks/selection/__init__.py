"""Selection: 112 tools, and plain requests with the one that each is for."""
