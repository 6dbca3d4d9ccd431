"""For people who test a bot, and for our own tests: `TestBot`, pytest plugin,
scripted model (issue: bot authors), the twins.
"""
