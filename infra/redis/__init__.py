"""Pending actions in Redis: the client, the Lua scripts and their runner."""
