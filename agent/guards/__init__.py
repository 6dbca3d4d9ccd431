"""Guardrails check what users say and what models answer;
the coherence check compares tool calls with the request.
"""
