"""The tools of the bot: yours go here."""

from sayso import tool


@tool()
def count_apples() -> str:
    """Count the apples in stock."""
    return "There are 3 apples."
