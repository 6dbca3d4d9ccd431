"""Data loss: notice that Redis lost acknowledged writes, halt it, resume it,
and tell people what it forgot.
"""
