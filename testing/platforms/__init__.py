"""Fakes of the chat platforms, which speak HTTP, and the webhooks that the platforms would send."""
