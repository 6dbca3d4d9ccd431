"""Observers, traces, usage."""
