"""Setup: what each platform is told of its channel, what it says of it, and whether all of it fits together."""
