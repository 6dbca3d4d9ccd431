"""Mutation testing of the pending room: `make mutants`."""
