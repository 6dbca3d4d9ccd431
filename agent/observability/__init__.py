"""Observers, traces and usage of runs."""
