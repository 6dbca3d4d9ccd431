"""WhatsApp through Twilio: all of it."""
