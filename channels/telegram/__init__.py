"""Everything about Telegram: settings, updates, messages, polling and setup."""
