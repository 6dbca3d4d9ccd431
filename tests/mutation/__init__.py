"""Mutation testing of the `pending` package: `make mutants`."""
