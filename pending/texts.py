"""Texts: what people are told about a pending action. Each says what happened to what, and what to do next."""

from __future__ import annotations


def question(preview: str, seconds: float) -> str:
    """The preview and how to answer it."""
    return f"{preview}\n\nReply **yes** to confirm or **no** to cancel, within {_duration(seconds)}."


def done(preview: str, result: str) -> str:
    """The action ran. What it reported says it best."""
    return result or f"Done: {preview}"


def failed(preview: str) -> str:
    """The action was started and raised an error."""
    return f"Confirmed, but this failed: {preview}. I did not try again. Check it, then ask again if you need it."


def unknown(preview: str) -> str:
    """The action was started and nobody knows how it ended."""
    return f"I was interrupted while doing this: {preview}. I cannot tell whether it finished. I will not repeat it."


def correction(preview: str, result: str) -> str:
    """The action had ended after all."""
    return f"Correction: it had finished after all. {done(preview, result)}"


def cancelled(preview: str) -> str:
    """The user said no."""
    return f"Cancelled: {preview}"


def expired(preview: str) -> str:
    """The yes came too late."""
    return f"That confirmation expired: {preview}. Nothing was done. Ask again if you still want it."


def dropped(preview: str) -> str:
    """The user went on to something else."""
    return f"Not confirmed, so I dropped this: {preview}."


def early(preview: str) -> str:
    """The yes was said before the question was delivered."""
    return f"I had not asked yet when you said that. Do you want this? {preview}. Reply **yes** or **no**."


def ignored(preview: str) -> str:
    """The user tapped it away without deciding."""
    return f"Still waiting, for a few seconds: {preview}. Reply **yes** or **no**."


def unsafe(preview: str) -> str:
    """The record is not what was shown, or nothing can run it any more."""
    return f"I could not safely confirm this: {preview}. Nothing was done. Please ask again."


def overtaken() -> str:
    """Two messages at once, and the other one won."""
    return "Another message of yours was quicker, so I did nothing about this one. Please send it again."


def tampered() -> str:
    """The stored record is not what was shown: its words are not ours to repeat."""
    return (
        "I could not safely confirm that: what is stored is not what I showed you. Nothing was done. Please ask again."
    )


def stale() -> str:
    """A button of a prompt that is over or of somebody else's."""
    return "That button is not for anything you can decide now. Nothing was done."


def model_away() -> str:
    """The model could not be asked. Its own words are for the operator."""
    return "I cannot think right now: the language model does not answer. Nothing was done. Please try again shortly."


def _duration(seconds: float) -> str:
    return f"{seconds:g} seconds" if seconds < 120 else f"{seconds / 60:g} minutes"
