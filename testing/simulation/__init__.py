"""`sayso simulate`: simulated people talk to a real bot whose processes are broken on purpose.

What they did, what they read and which effects happened is judged from outside.
"""
