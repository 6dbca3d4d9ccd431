"""Channels: the adapters that turn platform webhooks into turns and replies into platform messages."""
