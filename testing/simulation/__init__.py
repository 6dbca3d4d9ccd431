"""Simulation: people on all platforms at a real Sayso that is broken on purpose,
judged from outside.
"""
