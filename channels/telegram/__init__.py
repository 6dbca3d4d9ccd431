"""Telegram: all of it."""
