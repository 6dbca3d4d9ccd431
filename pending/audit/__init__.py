"""Audit: the log of every transition, drained from Redis, checked, exported and erased from."""
