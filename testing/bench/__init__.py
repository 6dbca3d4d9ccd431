"""`sayso bench`: how many webhooks and turns a second this machine takes, and what limits it."""
