"""The texts of the bot itself in all languages, language detection, and invisible characters."""
