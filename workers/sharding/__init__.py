"""Conversations spread over several Redis primaries."""
