"""Example tools, as a project that uses Sayso would write them."""
