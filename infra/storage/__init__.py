"""Storage on this machine's disk: private files and folders, SQLite databases, and the media store."""
