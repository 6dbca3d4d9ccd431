"""Fits a transcript into the context window of a model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from sayso.agent.memory.conversation import LOW_WATER_SHARE, surplus_in_steps
from sayso.agent.messages import Message, Role
from sayso.agent.run.long_results import shorten_message, text_tokens
from sayso.agent.tools.call_texts import truncate

#: Assumed context window of a model whose size is unknown, such as one on a private server,
#: in tokens.
DEFAULT_CONTEXT_TOKENS = 200_000
#: The share of the context window that one tool result may take at most.
RESULT_SHARE = 0.25
#: The share of the context window that is left for a transcript at least,
#: whatever else the request contains.
MIN_TRANSCRIPT_SHARE = 0.125
#: Tokens that a file counts as, about those of a picture.
FILE_TOKENS = 1500
#: Texts are not cut below this number of tokens.
MIN_TEXT_TOKENS = 100
#: Transcripts with fewer characters fit every known model and are not measured.
SMALL_CHARS = 6000


def message_tokens(message: Message) -> int:
    """Return an estimate of the tokens of a message with its calls and files."""
    calls = sum(
        text_tokens(call.tool_name + json.dumps(call.parameters, default=str))
        for call in message.tool_calls
    )
    return (
        text_tokens(message.content)
        + calls
        + FILE_TOKENS * (len(message.media) + len(message.pictures))
    )


def transcript_tokens(messages: Sequence[Message]) -> int:
    """Return an estimate of the tokens of a transcript."""
    return sum(map(message_tokens, messages))


def fit_transcript(
    history: Sequence[Message], current: Sequence[Message], *, max_tokens: int, result_tokens: int
) -> list[Message]:
    """Return the transcript in about `max_tokens` tokens, as far as possible.

    First, tool results are cut to `result_tokens` each, but to no more than half of `max_tokens`.
    Then the oldest exchanges of the `history` are left out; if even the last exchange does not fit,
    its longest texts are cut. Finally, the longest texts of the `current` exchange are cut.

    Exchanges are left out in steps of about LOW_WATER_SHARE of `max_tokens`: while the conversation
    grows, the transcript begins with the same message for many turns, so that the vendor's cache
    knows it.
    """
    limit = min(result_tokens, max(max_tokens // 2, MIN_TEXT_TOKENS))
    history = shorten_results(history, limit)
    current = shorten_results(current, limit)
    # A power of two, as the limit itself differs a little from turn to turn:
    # it is what other texts leave.
    step = 1 << max(int(max_tokens * LOW_WATER_SHARE), 1).bit_length() - 1
    recent = _newest_exchanges(history, max_tokens - transcript_tokens(current), step)
    return [*recent, *_cut_longest(current, max_tokens - transcript_tokens(recent))]


def shorten_results(messages: Sequence[Message], max_tokens: int) -> list[Message]:
    """Return the messages with each tool result in about `max_tokens` tokens."""
    shortened = list(messages)
    for at, message in enumerate(messages):
        if message.role is Role.TOOL:
            shortened[at] = shorten_message(message, max_tokens)
    return shortened


def _newest_exchanges(history: Sequence[Message], max_tokens: int, step: int) -> Sequence[Message]:
    """Return the newest complete exchanges that fit. An exchange begins with a user's message.

    The tokens that are left out are at least a multiple of `step`. If the last exchange alone does
    not fit, its texts are cut to half of the limit, because it is missed the most.
    """
    sizes = [message_tokens(message) for message in history]
    first_token = surplus_in_steps(sum(sizes), max_tokens, step)
    starts = [at for at, message in enumerate(history) if message.role is Role.USER]
    boundaries = {0, *starts}
    tokens_before = 0
    for start, size in enumerate(sizes):
        if tokens_before >= first_token and start in boundaries:
            return history[start:]
        tokens_before += size

    last = history[starts[-1] if starts else 0 :]
    if transcript_tokens(last) > max_tokens:
        last = _cut_longest(last, max_tokens // 2)
    if transcript_tokens(last) <= max_tokens:
        return last
    return []


def _cut_longest(messages: Sequence[Message], max_tokens: int) -> Sequence[Message]:
    """Return the messages with their longest texts cut, until all fit or no text is long."""
    limit = max(map(message_tokens, messages), default=0)
    while transcript_tokens(messages) > max_tokens and limit > MIN_TEXT_TOKENS:
        limit = max(limit // 2, MIN_TEXT_TOKENS)
        messages = [_cut(message, limit) for message in messages]
    return messages


def _cut(message: Message, max_tokens: int) -> Message:
    """Return the message with the beginning and end of its text in about `max_tokens` tokens."""
    if message.role is Role.TOOL:
        message = shorten_message(message, max_tokens)
    tokens = text_tokens(message.content)
    if tokens <= max_tokens:
        return message
    return replace(
        message, content=truncate(message.content, len(message.content) * max_tokens // tokens)
    )
