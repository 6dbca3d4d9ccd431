"""The browser page and the terminal."""
