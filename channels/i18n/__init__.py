"""The texts of the bot in all languages, language detection, and hidden characters."""
