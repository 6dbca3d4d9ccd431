"""Providers: adapters to language models and their vendors, and stand-ins for them."""
