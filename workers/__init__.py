"""Workers: turns that wait in Redis, the RQ jobs that drain them, and replies on their way out."""
