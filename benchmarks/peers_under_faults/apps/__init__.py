"""The apps: each the smallest bot by the documentation of its framework, in a file of its own."""
