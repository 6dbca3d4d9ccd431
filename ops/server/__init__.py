"""Processes on one machine."""
