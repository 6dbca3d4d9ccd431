"""The model of actions that other people decide: `office.py` is the bot, `judge.py` the promises."""
