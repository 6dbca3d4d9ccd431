"""One turn of one person on one channel."""
