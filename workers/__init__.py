"""Workers: durable conversations on Redis and RQ.

Turns wait in Redis until a worker answers them, and replies wait there until a platform has taken
them. `mailbox` and `processor` are where to begin.
"""
