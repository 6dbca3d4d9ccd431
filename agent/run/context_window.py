"""ContextFitter: decides how much of a transcript a model is sent.

A *context window* is the number of tokens that a model reads in one request. A request that
exceeds it is refused, so the oldest part of a long conversation is left out.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sayso.agent.config import AgentConfig
from sayso.agent.memory.conversation import LOW_WATER_SHARE, surplus_in_steps
from sayso.agent.messages import Message, Role
from sayso.agent.providers.base import (
    FILTERED,
    Provider,
    ProviderError,
    ProviderRequest,
    name_of,
    name_of_model,
)
from sayso.agent.providers.file_reading import without_files
from sayso.agent.run.long_results import (
    BYTES_PER_TOKEN,
    MAX_CHAR_BYTES,
    has_shortened_result,
    shorten_message,
    text_tokens,
)
from sayso.agent.run.state import RunState
from sayso.agent.tools.text_cuts import truncate

log = logging.getLogger(__name__)

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
#: No text is cut to fewer tokens than this.
MIN_TEXT_TOKENS = 100
#: Transcripts with fewer characters fit every known model and are not measured.
SMALL_CHARS = 6000
#: The largest share of a refused transcript that is sent again. It is below NOTABLE_SHARE, so that
#: the reduced transcript is worth a request.
MAX_FITTING_SHARE = 0.85
#: A reduced transcript with a larger share of the refused one is not worth another request: texts
#: that cannot be cut further would be sent, and refused, again.
NOTABLE_SHARE = 0.9
#: HTTP statuses with which a vendor refuses a request because of its content.
_CONTENT_STATUSES = frozenset({400, 413, 415, 422})


class ContextFitter:
    """Decides what of a run's transcript the model is sent, so that the request fits its window.

    The window is configured, or known for the model, or learned from requests that the vendor
    refused as too long. One ContextFitter per provider of an agent: what it learns holds for all
    later runs. All numbers of tokens are estimates.
    """

    def __init__(self, provider: Provider, config: AgentConfig) -> None:
        self._provider = provider
        self._config = config
        self._name = name_of(provider)
        #: Windows that were learned from refused requests, in estimated tokens, by model.
        self._learned_windows: dict[str, int] = {}

    def messages_for(
        self, run: RunState, model: str, prompt: str, schemas: Sequence[Mapping[str, Any]]
    ) -> Sequence[Message]:
        """Return the messages of a request: as much of the transcript as fits, and the memories.

        The transcript of a run is its history, which are the earlier turns, then its messages of
        this turn, then answers of the wrong form with their corrections (`rejected`). `model` is the name of the model, "" for the provider's default. `prompt` is the system
        prompt and `schemas` are the tools of the request: they need room as well.
        """
        config = self._config
        messages = run.transcript

        # Set once the vendor has refused a transcript of this run as too long.
        limit = run.max_transcript_tokens
        # A small transcript fits every known model. To estimate its tokens would take longer than
        # all other work on a request. A configured or learned window may be smaller than any known
        # one.
        is_learned = name_of_model(self._provider, model) in self._learned_windows
        has_own_window = config.context_tokens is not None or is_learned
        if limit is None and (has_own_window or not self._is_small(messages)):
            window = self._window(model)
            others = self._other_tokens(run, prompt, schemas)
            limit = max(window - others, int(window * MIN_TRANSCRIPT_SHARE))

        if limit is not None:
            current = [*run.messages, *run.rejected]
            messages = fit_transcript(
                run.history, current, max_tokens=limit, result_tokens=run.result_tokens
            )
        if run.names_files_only:
            messages = without_files(messages)
        return run.with_context(messages)

    def limit_results(self, run: RunState) -> None:
        """Set how many tokens of one tool result are sent in this step (`run.result_tokens`).

        Set also `run.can_read_on`: whether the model is shown `read_result`, the tool that reads
        the rest of a shortened result. It is shown once a result was shortened, and then for the
        rest of the conversation.

        The model of this step is selected later, since it gets the tools that follow from this. So
        the window is that of the model of the step before.
        """
        configured = self._config.result_tokens
        if self._is_small(run.transcript):
            # No result in it is long enough to be shortened, whatever the window is.
            share_of_window = configured
        else:
            window = run.max_transcript_tokens or self._window(run.model or self._config.model)
            share_of_window = int(window * RESULT_SHARE)

        if getattr(self._provider, "shows_results", False):
            # A provider without a model shows people as much of a result as the window holds, also
            # more than `result_tokens`: that costs nothing.
            run.result_tokens = share_of_window
            run.can_read_on = False
            return
        run.result_tokens = min(configured, share_of_window)
        run.can_read_on = run.can_read_on or has_shortened_result(run.transcript, run.result_tokens)

    def _is_small(self, messages: Sequence[Message]) -> bool:
        """Return whether a transcript fits every model, and its results need not be shortened."""
        # So few characters are below `result_tokens` even if each takes MAX_CHAR_BYTES bytes.
        most = min(SMALL_CHARS, self._config.result_tokens * BYTES_PER_TOKEN // MAX_CHAR_BYTES)
        return sum(len(message.content) for message in messages) < most

    def _window(self, model: str) -> int:
        """Return the context window of a model in tokens.

        It is the configured one, else the known one, else DEFAULT_CONTEXT_TOKENS; but never more
        than refused requests have shown.
        """
        window = self._config.context_tokens
        window_of = getattr(self._provider, "context_tokens", None)
        if window is None and callable(window_of):
            window = window_of(model)
        window = window or DEFAULT_CONTEXT_TOKENS

        name = name_of_model(self._provider, model)
        return min(window, self._learned_windows.get(name, window))

    def _other_tokens(
        self, run: RunState, prompt: str, schemas: Sequence[Mapping[str, Any]]
    ) -> int:
        """Return an estimate of the tokens of a request without its transcript.

        These are the prompt, the tools, what is remembered, and the room for the answer.
        """
        tools = json.dumps(list(schemas), default=str)
        texts = (prompt, run.stable_context, run.changing_context, tools)
        return self._config.max_tokens + sum(map(text_tokens, texts))

    def learn_window(self, run: RunState, request: ProviderRequest, tokens: int) -> None:
        """Remember the window of a model that accepts `tokens` of a transcript, and no more."""
        others = self._other_tokens(run, request.system_prompt, request.tools or ())
        window = tokens + others
        model = name_of_model(self._provider, request.model)
        learned = self._learned_windows.get(model)
        if learned is not None and window >= learned:
            return
        self._learned_windows[model] = window
        log.warning(
            "model.window_learned model=%s provider=%s tokens=%d", model, self._name, window
        )

    def reduced_messages(
        self, run: RunState, request: ProviderRequest, error: ProviderError
    ) -> Sequence[Message] | None:
        """Return fewer messages than the vendor has refused; None if nothing can be left out.

        The later requests of the run stay reduced as well. What is left out depends on the error:

        | the vendor says                    | left out                                           |
        |------------------------------------|----------------------------------------------------|
        | too long                           | what exceeds the size that it names, or one half   |
        | too long, but no text can be cut   | the files, as in the next row                      |
        | much further                       |                                                    |
        | refused, and there are files       | the files; they are only named, since one may be   |
        |                                    | damaged or larger than it looks                    |
        | refused by a content filter        | the history, so that one message in it does not    |
        |                                    | block all that follow                              |
        """
        if error.kind == "too_long":
            tokens = _removable_tokens(request.messages)
            previous_limit = run.max_transcript_tokens
            previous_result_tokens = run.result_tokens
            fitting = self._fitting_tokens(run, request, tokens, error.fitting_share)
            run.max_transcript_tokens = fitting
            self.limit_results(run)
            shorter = self.messages_for(
                run, request.model, request.system_prompt, request.tools or ()
            )
            is_notably_shorter = _removable_tokens(shorter) <= tokens * NOTABLE_SHARE
            if is_notably_shorter:
                log.warning("model.context_exceeded run=%s %s", run.events.run_id, error.cause)
                return shorter
            # The texts are not what made it too long. They are sent as before, without the files.
            run.max_transcript_tokens = previous_limit
            run.result_tokens = previous_result_tokens
        elif error.kind != "refused" or error.status not in _CONTENT_STATUSES:
            return None

        if not run.names_files_only and has_files(request.messages):
            run.names_files_only = True
            # The limits that were tried so far counted the files.
            run.max_transcript_tokens = None
            log.warning("model.files_left_out run=%s %s", run.events.run_id, error.cause)
        elif error.code == FILTERED and run.history:
            run.history = []
            log.warning("model.history_left_out run=%s %s", run.events.run_id, error.cause)
        else:
            return None
        return self.messages_for(run, request.model, request.system_prompt, request.tools or ())

    def _fitting_tokens(
        self,
        run: RunState,
        request: ProviderRequest,
        tokens: int,
        share: float | None,
    ) -> int:
        """Return how many tokens a refused transcript of `tokens` may have.

        `share` is the share of the whole request that the model would accept, as the vendor's error
        says; None if it does not.
        """
        if share is None:
            return tokens // 2
        others = self._other_tokens(run, request.system_prompt, request.tools or ())
        fitting = int((tokens + others) * share) - others
        least = int(tokens * MIN_TRANSCRIPT_SHARE)
        most = int(tokens * MAX_FITTING_SHARE)
        return min(max(fitting, least), most)


def has_files(messages: Sequence[Message]) -> bool:
    """Return whether a file or an image is sent with the messages."""
    return any(message.media or message.pictures for message in messages)


def _removable_tokens(messages: Sequence[Message]) -> int:
    """Return an estimate of the tokens of the messages that can be left out of a request.

    Those of the system stay: they have what the agent remembers.
    """
    return transcript_tokens([message for message in messages if message.role is not Role.SYSTEM])


def message_tokens(message: Message) -> int:
    """Return an estimate of the tokens of a message with its calls and files."""
    tokens = text_tokens(message.content)
    for call in message.tool_calls:
        arguments = json.dumps(call.parameters, default=str)
        tokens += text_tokens(call.tool_name + arguments)
    file_count = len(message.media) + len(message.pictures)
    return tokens + FILE_TOKENS * file_count


def transcript_tokens(messages: Sequence[Message]) -> int:
    """Return an estimate of the tokens of a transcript."""
    return sum(map(message_tokens, messages))


def fit_transcript(
    history: Sequence[Message], current: Sequence[Message], *, max_tokens: int, result_tokens: int
) -> list[Message]:
    """Return the transcript in about `max_tokens` tokens, as far as possible.

    1. Tool results are cut to `result_tokens` each, but to no more than half of `max_tokens`.
    2. The oldest exchanges of the `history` are left out; if even the last exchange does not fit,
       its longest texts are cut. An *exchange* begins with a user's message.
    3. The longest texts of the `current` exchange, that of this run, are cut.

    Exchanges are left out in steps of about LOW_WATER_SHARE (a half) of `max_tokens`: while the
    conversation grows, the transcript begins with the same message for many turns, so that the
    vendor's cache knows it.
    """
    limit = min(result_tokens, max(max_tokens // 2, MIN_TEXT_TOKENS))
    history = shorten_results(history, limit)
    current = shorten_results(current, limit)
    # The step is a power of two. The limit differs a little from turn to turn, since other texts
    # need room too, and the step must not.
    wanted_step = max(int(max_tokens * LOW_WATER_SHARE), 1)
    step = 1 << (wanted_step.bit_length() - 1)

    recent = _newest_exchanges(history, max_tokens - transcript_tokens(current), step)
    current = _cut_longest(current, max_tokens - transcript_tokens(recent))
    return [*recent, *current]


def shorten_results(messages: Sequence[Message], max_tokens: int) -> list[Message]:
    """Return the messages with each tool result in about `max_tokens` tokens."""
    shortened = list(messages)
    for index, message in enumerate(messages):
        if message.role is Role.TOOL:
            shortened[index] = shorten_message(message, max_tokens)
    return shortened


def _newest_exchanges(history: Sequence[Message], max_tokens: int, step: int) -> Sequence[Message]:
    """Return the newest complete exchanges that fit into `max_tokens`.

    As many tokens are left out as are too many, rounded up to a multiple of `step`, and then all
    up to the next beginning of an exchange. If the last exchange alone does not fit, its texts are
    cut to half of the limit, because the current message most likely refers to it. Nothing is
    returned if that does not help.
    """
    sizes = [message_tokens(message) for message in history]
    surplus = surplus_in_steps(sum(sizes), max_tokens, step)
    starts = [index for index, message in enumerate(history) if message.role is Role.USER]
    # 0, so that a history that fits is returned whole, whatever message it begins with.
    boundaries = {0, *starts}
    tokens_before = 0
    for start, tokens in enumerate(sizes):
        if tokens_before >= surplus and start in boundaries:
            return history[start:]
        tokens_before += tokens

    # Rounded up, the surplus may be more than all that precedes the last exchange.
    last = history
    if starts:
        last = history[starts[-1] :]
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
    max_chars = len(message.content) * max_tokens // tokens
    return replace(message, content=truncate(message.content, max_chars))
