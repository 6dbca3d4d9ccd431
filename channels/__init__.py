"""Channels: the adapters, which turn webhooks into turns and replies into messages of a platform."""
