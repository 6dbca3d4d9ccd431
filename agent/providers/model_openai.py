"""ChatModel: pydantic-ai's model of OpenAI's chat completions, for servers that differ from OpenAI.

Needs the extra `llm`. Many vendors, gateways and self-hosted servers have OpenAI's API. Each
function here mends one way in which some of them differ from it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from openai import AsyncStream
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.chat.chat_completion_chunk import Choice, ChoiceDelta, ChoiceDeltaToolCall
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIStreamedResponse

#: Finish reasons of other vendors and servers -> OpenAI's. pydantic-ai would ignore them, so half
#: an answer would pass for a whole one.
_FINISH_REASONS: Mapping[str, Any] = {
    # Mistral, Cohere, Z.ai
    "model_length": "length",
    "max_tokens": "length",
    "sensitive": "content_filter",
}
#: Finish reasons of an answer that broke off -> the HTTP status of the same failure: DeepSeek,
#: Z.ai, vLLM, OpenRouter.
_BROKEN_OFF = {
    "insufficient_system_resource": 503,
    "network_error": 502,
    "abort": 502,
    "error": 502,
}


class ChatModel(OpenAIChatModel):
    """pydantic-ai's model, made to work with other vendors and gateways.

    The provider makes one for each request, with that request's model name. It keeps no state.

    Several streamed tool calls under one index become several calls, other vendors' finish reasons
    are known, and errors that some gateways answer with status 200 are raised. The methods that are
    overridden here are documented by pydantic-ai for subclasses.
    """

    @property
    def _streamed_response_cls(self) -> type[OpenAIStreamedResponse]:
        return _Stream

    async def _process_streamed_response(
        self, response: Any, *args: Any, **options: Any
    ) -> OpenAIStreamedResponse:
        """Return the reader of a stream."""
        # Some servers and gateways cannot stream, or not with tools.
        if "application/json" in response.response.headers.get("content-type", ""):
            response = _JsonAnswer(response)
        return await super()._process_streamed_response(response, *args, **options)

    def _validate_completion(self, response: ChatCompletion) -> Any:
        """Return a whole answer in the form that the library reads."""
        _raise_error_in(response, self.model_name)
        _settle_finish_reasons(response, self.model_name)
        # Some servers leave out what the library requires here, though not in a stream.
        response.id = response.id or ""
        response.object = "chat.completion"
        response.model = response.model or self.model_name
        for index, choice in enumerate(response.choices or []):
            choice.index = index
            choice.message.role = "assistant"
            # Snowflake sends "". That is not done in a stream, where each chunk may have "".
            choice.finish_reason = choice.finish_reason or "stop"
            for call in choice.message.tool_calls or []:
                _mend_call(call)
        return super()._validate_completion(response)


def _raise_error_in(answer: ChatCompletion | ChatCompletionChunk, model_name: str) -> None:
    """Raise the error that stands in place of an answer, if there is one.

    OpenRouter sends an error next to the choices or inside of a choice, older vLLM in place of all
    fields. A gateway may send a mere text, which counts as an error only without choices.
    """
    extra = answer.model_extra or {}
    object_type: str = answer.object
    own_error = extra.get("error")
    if object_type == "error":
        own_error = extra
    elif isinstance(own_error, str) and own_error and not answer.choices:
        own_error = {"message": own_error}

    errors = [own_error]
    errors += [(choice.model_extra or {}).get("error") for choice in answer.choices or []]
    for error in errors:
        if error and isinstance(error, dict):
            code = str(error.get("code") or "")
            raise ModelHTTPError(
                _status_of(code), model_name, error, provider_error_code=code or None
            )


def _status_of(code: str) -> int:
    """Return an error code as an HTTP status; 502, a fault of the server, for any other code."""
    if code.isdigit() and 400 <= int(code) < 600:
        return int(code)
    return 502


def _settle_finish_reasons(answer: ChatCompletion | ChatCompletionChunk, model_name: str) -> None:
    """Write other vendors' finish reasons as OpenAI's.

    Raise ModelHTTPError for an answer that broke off.
    """
    for choice in answer.choices or []:
        reason: str = choice.finish_reason or ""
        if reason in _BROKEN_OFF:
            message = {"message": f"the answer ended with {reason!r}"}
            raise ModelHTTPError(
                _BROKEN_OFF[reason], model_name, message, provider_error_code=reason
            )
        if reason in _FINISH_REASONS:
            choice.finish_reason = _FINISH_REASONS[reason]


def _mend_call(call: Any) -> None:
    """Write a whole call as OpenAI does: with an id, and arguments that are text.

    Some servers send no id, null for no arguments, or arguments as an object. The library would
    refuse the whole answer, although it reads such calls in a stream.
    """
    # The library then makes an id, another one for each call.
    if call.id is None:
        call.id = ""
    function = getattr(call, "function", None)
    if function is None:
        return
    if function.arguments is None:
        function.arguments = "{}"
    elif not isinstance(function.arguments, str):
        function.arguments = json.dumps(function.arguments, ensure_ascii=False)


class _JsonAnswer:
    """The stream of chunks in a response that is declared as JSON.

    It is mostly a whole answer, which becomes the only chunk. Some servers declare a stream as
    JSON: its chunks are read as usual, though all at the end. An error of reading or parsing is
    translated where all errors of the library are (`model_errors`).

    The library uses only these two methods of a stream.
    """

    def __init__(self, stream: AsyncStream[ChatCompletionChunk]) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[ChatCompletionChunk]:
        """Yield the chunks."""
        body = await self._stream.response.aread()
        if body.lstrip().startswith(b"{"):
            yield _chunk_of(json.loads(body))
            return
        async for chunk in self._stream:
            yield chunk

    async def close(self) -> None:
        """Close the response."""
        await self._stream.close()


def _chunk_of(answer: dict[str, Any]) -> ChatCompletionChunk:
    """Return a whole answer as the only chunk of a stream.

    A chunk has a `delta` where an answer has its `message`.
    """
    choices = []
    for choice in answer.get("choices") or []:
        finish_reason = choice.get("finish_reason") or "stop"
        # A server may also declare the only chunk of a stream as JSON.
        delta = choice.get("message") or choice.get("delta")
        choices.append({**choice, "delta": delta, "finish_reason": finish_reason})

    chunk = ChatCompletionChunk.construct(**{**answer, "choices": choices})
    for chunk_choice in chunk.choices:
        for number, call in enumerate(_call_deltas(chunk_choice)):
            call.index = number
            _mend_call(call)
    return chunk


def _call_deltas(choice: Choice) -> list[ChoiceDeltaToolCall]:
    """Return the pieces of tool calls in a choice. Some servers send a choice without a delta."""
    delta: ChoiceDelta | None = choice.delta
    if delta is None:
        return []
    return delta.tool_calls or []


class _Stream(OpenAIStreamedResponse):
    """Reads a streamed answer."""

    async def _validate_response(self) -> AsyncIterator[ChatCompletionChunk]:
        """Yield the chunks in the form that the library reads."""
        numbers = CallNumbers()
        names: dict[int, str] = {}
        async for chunk in super()._validate_response():
            _raise_error_in(chunk, self.model_name)
            _settle_finish_reasons(chunk, self.model_name)
            for choice in chunk.choices or []:
                for delta in _call_deltas(choice):
                    delta.index = numbers.number(delta)
                    _drop_repeated_name(delta, names)
            yield chunk


def _drop_repeated_name(delta: ChoiceDeltaToolCall, names: dict[int, str]) -> None:
    """Remove the name from a delta whose call has it already: the library would write it twice.

    `names` has the name of each call so far, by the number of the call. Parts of a name are added.
    """
    if delta.function is None or not delta.function.name:
        return
    known_name = names.get(delta.index, "")
    if known_name == delta.function.name:
        delta.function.name = None
    else:
        names[delta.index] = known_name + delta.function.name


class CallNumbers:
    """Unique numbers for the tool calls of one streamed answer.

    A call arrives in pieces, called deltas. Some servers send several calls under one index. The
    library joins deltas by index, and would make one call of all their names and arguments.
    Therefore a delta with an id that its index has not had yet starts a new call. So a server must
    send the id of a call with its first delta or never, and no other id with its later ones.
    """

    def __init__(self) -> None:
        #: Index -> the number of the call that deltas without an id belong to.
        self._current: dict[int, int] = {}
        #: (index, id) -> the number of the call.
        self._numbers: dict[tuple[int, str], int] = {}

    def number(self, delta: ChoiceDeltaToolCall) -> int:
        """Return the number of the call that a delta belongs to."""
        index = delta.index or 0  # some servers omit it
        if delta.id:
            number = self._numbers.setdefault((index, delta.id), len(self._numbers))
            self._current[index] = number
        elif index not in self._current:
            self._current[index] = self._numbers.setdefault((index, ""), len(self._numbers))
        return self._current[index]
