"""Who may talk."""
