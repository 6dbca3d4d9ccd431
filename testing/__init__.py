"""What stands in for the outside world while a bot is tested.

`platforms` are fakes of Twilio, Telegram and Slack that speak HTTP, `simulation` is
`sayso simulate`, and `bench` is `sayso bench`. Nothing here runs in production.
"""
