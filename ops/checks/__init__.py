"""What is wrong, what would happen."""
