"""Everything about WhatsApp through Twilio: settings, webhooks, messages and setup."""
