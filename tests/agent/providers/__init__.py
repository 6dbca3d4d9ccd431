"""Strict twins of real models' APIs in a process of their own, and the tests of the providers against them."""
