"""Guardrails check texts of users and models, the coherence check calls of tools."""
