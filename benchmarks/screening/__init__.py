"""Screening corpus: texts that instruct a model, and texts that only look like it."""
