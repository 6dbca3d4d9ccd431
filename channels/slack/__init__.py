"""Slack: all of it."""
