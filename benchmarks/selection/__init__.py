"""Selection: 112 tools, and plain requests with the tool that fits each."""
