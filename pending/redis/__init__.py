"""Lua scripts and their runner."""
