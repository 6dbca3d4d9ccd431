"""Workers: turns that wait in Redis, the RQ jobs that process them, and the replies to send."""
