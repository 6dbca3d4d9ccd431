"""The turns of a conversation: what waits in its queues, and all that one turn may change."""
