"""Fakes: working twins of the chat platforms, and signers for the webhooks they would send."""
