"""Price: what conversations cost in tokens, calls and messages, beside two peers."""
