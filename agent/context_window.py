"""Context window: fit a transcript into what a model can read at once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from sayso.agent.messages import Message, Role
from sayso.agent.tools.truncation import truncate

#: Tokens of a model whose limit nobody knows, such as one on a server of your own.
DEFAULT_CONTEXT_TOKENS = 200_000
#: The share of the context window that one result of a tool may take.
RESULT_SHARE = 0.25
#: Bytes of UTF-8 that count as one token. Plain English has more; numbers, JSON and Chinese have about so many.
BYTES_PER_TOKEN = 3
#: Tokens that a file counts as. A picture takes about so many.
FILE_TOKENS = 1500
#: Tokens of a text that no further cut makes shorter.
MIN_TEXT_TOKENS = 100
#: Characters of a transcript that no known model is too small for: it is not measured.
SMALL_CHARS = 6000


def tokens_in(text: str) -> int:
    """Return about how many tokens a text takes, rather too many than too few."""
    return len(text.encode(errors="surrogatepass")) // BYTES_PER_TOKEN + 1


def message_tokens(message: Message) -> int:
    """Return about how many tokens a message takes, with its calls and files."""
    calls = sum(tokens_in(call.tool_name + json.dumps(call.parameters, default=str)) for call in message.tool_calls)
    return tokens_in(message.content) + calls + FILE_TOKENS * (len(message.media) + len(message.pictures))


def transcript_tokens(messages: Sequence[Message]) -> int:
    """Return about how many tokens a transcript takes."""
    return sum(map(message_tokens, messages))


def is_small(messages: Sequence[Message]) -> bool:
    """Return whether a transcript fits into any model, so that nobody has to measure it."""
    return sum(len(message.content) for message in messages) < SMALL_CHARS


def fitted(
    history: Sequence[Message], current: Sequence[Message], *, room: int, result_tokens: int | None = None
) -> list[Message]:
    """Return the transcript within `room` tokens, as far as it can be made to fit.

    Results of tools are cut to `result_tokens` each (a quarter of the room without it). Then the oldest exchanges of
    the `history` are left out; of the last one, the longest texts are cut first. What is still too long then are texts
    of the `current` exchange: the longest are cut.
    """
    most = min(result_tokens or int(room * RESULT_SHARE), max(room // 2, MIN_TEXT_TOKENS))
    history = [_cut_result(message, most) for message in history]
    current = [_cut_result(message, most) for message in current]
    kept = _newest(history, room - transcript_tokens(current))
    return [*kept, *_squeezed(current, room - transcript_tokens(kept))]


def _cut_result(message: Message, most: int) -> Message:
    return _cut(message, most) if message.role is Role.TOOL else message


def _cut(message: Message, most: int) -> Message:
    """Return the message with a text of at most about so many tokens: its beginning and its end."""
    tokens = tokens_in(message.content)
    if tokens <= most:
        return message
    return replace(message, content=truncate(message.content, len(message.content) * most // tokens))


def _newest(history: Sequence[Message], room: int) -> Sequence[Message]:
    """Return the newest whole exchanges that fit. An exchange begins with a user's message. The last one is cut to half
    of the room where it alone does not fit: what was said a moment ago is missed the most.
    """
    starts = [at for at, message in enumerate(history) if message.role is Role.USER]
    total, first = 0, len(history)
    for start in reversed([0, *starts[1:]] if history else []):
        total += transcript_tokens(history[start:first])
        if total > room:
            break
        first = start
    if first == len(history) and history:
        last = _squeezed(history[starts[-1] if starts else 0 :], room // 2)
        return last if transcript_tokens(last) <= room else []
    return history[first:]


def _squeezed(messages: Sequence[Message], room: int) -> Sequence[Message]:
    """Return the messages with their longest texts cut until all fit, or none is long any more."""
    most = max(map(message_tokens, messages), default=0)
    while transcript_tokens(messages) > room and most > MIN_TEXT_TOKENS:
        most = max(most // 2, MIN_TEXT_TOKENS)
        messages = [_cut(message, most) for message in messages]
    return messages
