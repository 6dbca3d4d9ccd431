"""Audit: the hash-chained log of all transitions.

Collected from Redis, verified, exported, and erased on request.
"""
