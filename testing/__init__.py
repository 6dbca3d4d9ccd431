"""Tools for testing a bot without the outside world. Nothing here runs in production.

| what | where |
|---|---|
| fakes of Twilio, Telegram and Slack that speak HTTP | `platforms/` |
| `sayso simulate`: people who talk to a bot that is broken on purpose | `simulation/` |
| `sayso bench`: how much a machine takes, and what limits it | `bench/` |
"""
