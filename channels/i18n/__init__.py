"""What we say, in ten languages."""
