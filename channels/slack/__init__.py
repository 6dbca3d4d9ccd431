"""Everything about Slack: settings, requests, messages, installations and setup."""
