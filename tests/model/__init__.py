"""The model test: Hypothesis drives the real code on a real Redis through crashes, pauses and lost answers."""
