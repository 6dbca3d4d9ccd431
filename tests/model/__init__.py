"""The model test: the real code on a real Redis, driven through crashes, pauses and lost answers by Hypothesis."""
