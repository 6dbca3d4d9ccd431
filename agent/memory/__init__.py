"""Memory: what an agent keeps of a conversation and across conversations,
and the stores of sessions.
"""
