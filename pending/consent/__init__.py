"""Consent: decide whether a message is a yes or a no to the open question."""
