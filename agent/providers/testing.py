"""Providers for tests and demos.

* ScriptedProvider gives prepared answers.
* BelievingModel does what its user wants, and believes what the results of tools say.
* LocalProvider repeats the user's text.

The first two refuse a history that a vendor would refuse.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sayso.agent.messages import Message, Role, ToolCall, UsageStats, without_notes
from sayso.agent.providers.base import (
    Completion,
    ProviderError,
    ProviderRequest,
    RequestRefusedError,
    StreamItem,
)

#: One answer: a message, its text, its tool calls, or an exception to raise.
ScriptLine = Message | str | ToolCall | list[ToolCall] | Exception
#: What a BelievingModel does for a request of its user: the calls of each step, in order. The calls
#: of an inner list are made in one answer.
Wish = ToolCall | Sequence[ToolCall | Sequence[ToolCall]]

#: The beginning of a result that says its call was not done -> the outcome of the call.
_NOT_DONE = {"Error": "failed", "Not run": "replaced"}
#: Ids of calls and names of tools that all vendors accept.
_LEGAL = re.compile(r"[A-Za-z0-9_-]{1,64}")


class InvalidHistory(RequestRefusedError):
    """Raised when a request has a history that a vendor would refuse.

    The bot treats it as a real refusal.
    """


def check_history(messages: Sequence[Message]) -> None:
    """Raise InvalidHistory for messages that a vendor would refuse in a request.

    System messages do not count. A valid history

    * begins with a message of the user, and ends with one of the user or a result,
    * has no empty answer,
    * has calls with different ids, each with a name and exactly one result, which stands before any
      other message,
    * says in the result of a call that waits for a decision that it waits.
    """
    conversation = [message for message in messages if message.role is not Role.SYSTEM]
    if not conversation or conversation[0].role is not Role.USER:
        raise InvalidHistory("the history does not begin with a message of the user")
    if conversation[-1].role is Role.ASSISTANT:
        raise InvalidHistory("the history ends with an answer: there is nothing to answer")

    used_ids: set[str] = set()
    # Id -> call that has no result yet.
    open_calls: dict[str, ToolCall] = {}
    for number, message in enumerate(conversation, 1):
        where = f"message {number} ({message.role})"
        if message.role is Role.TOOL:
            call = open_calls.pop(message.tool_call_id, None)
            if call is None or call.tool_name != message.tool_name:
                raise InvalidHistory(
                    f"{where} is the result of {message.tool_call_id!r}, which is no open call"
                )
            if not message.content and any(not link.outcome for link in message.actions):
                raise InvalidHistory(
                    f"{where} is an empty result: nothing says that its call waits for a decision"
                )
            continue

        _refuse_open(open_calls, where)
        if message.role is Role.ASSISTANT and not (message.content.strip() or message.tool_calls):
            raise InvalidHistory(f"{where} is empty")
        for call in message.tool_calls:
            _check_call(call, used_ids, where)
            open_calls[call.id] = call
    _refuse_open(open_calls, "the end")


def _refuse_open(open_calls: Mapping[str, ToolCall], where: str) -> None:
    """Raise InvalidHistory if a call has no result before this place of the history."""
    for call in open_calls.values():  # the error names the first one
        raise InvalidHistory(
            f"the call {call.id!r} of {call.tool_name!r} has no result before {where}"
        )


def _check_call(call: ToolCall, used_ids: set[str], where: str) -> None:
    """Raise InvalidHistory for a call that no vendor accepts. Add its id to `used_ids`."""
    if not (_LEGAL.fullmatch(call.id) and _LEGAL.fullmatch(call.tool_name)):
        raise InvalidHistory(
            f"{where} has a call with the id {call.id!r} and the name {call.tool_name!r}"
        )
    if call.id in used_ids:
        raise InvalidHistory(f"{where} uses the id {call.id!r} of an earlier call again")
    json.dumps(call.parameters)  # raises for arguments that JSON cannot hold
    used_ids.add(call.id)


class ScriptedProvider:
    """Gives prepared answers in order, one to each request. Thread-safe.

    With `strict`, a history that a vendor would refuse is refused with InvalidHistory, see
    `check_history`. `requests` holds every request, also those answered with an exception.
    """

    def __init__(self, lines: Iterable[ScriptLine], *, strict: bool = True) -> None:
        self._lines = list(lines)
        self._strict = strict
        self._lock = threading.Lock()
        self.requests: list[ProviderRequest] = []

    async def acomplete(self, **kwargs: Any) -> Completion:
        """Return the next answer. `kwargs` are the fields of a ProviderRequest.

        Raise an exception that is the next line, ProviderError after the last line, and
        InvalidHistory.
        """
        request = ProviderRequest(**{**kwargs, "messages": tuple(kwargs["messages"])})
        with self._lock:
            self.requests.append(request)
            count = len(self.requests)

        if self._strict:
            check_history(request.messages)
        if count > len(self._lines):
            raise ProviderError(f"the script has {len(self._lines)} lines, this is request {count}")
        line = self._lines[count - 1]
        if isinstance(line, Exception):
            raise line
        return _answer_of(line), _usage(kwargs["model"], "scripted")


def _answer_of(line: Message | str | ToolCall | list[ToolCall]) -> Message:
    """Return a line of a script as an answer."""
    if isinstance(line, Message):
        return line
    if isinstance(line, str):
        return Message(Role.ASSISTANT, line)
    if isinstance(line, ToolCall):
        return Message(Role.ASSISTANT, tool_calls=(line,))
    return Message(Role.ASSISTANT, tool_calls=tuple(line))


def _usage(model: str, provider: str) -> UsageStats:
    """Return the usage of one request: one token each way."""
    return UsageStats(
        prompt_tokens=1, completion_tokens=1, total_tokens=2, model=model, provider=provider
    )


class BelievingModel:
    """Works for its user like a real model that believes what its tools return, and nothing else.

    `wishes` says what to do for a message of the user that contains a text, such as {"refund order
    17": ToolCall(...)}. The latest such message counts. The model takes its steps in order:

    * It makes the calls of a step, again and again until their results say that they ended. So a
      result that always reads `pending_confirmation` makes it ask without end.
    * A step that was not done ends its work.
    * At the end it answers with one line for each call, such as `refund done: Refund R-9 booked.`

    A history that a vendor would refuse is refused with InvalidHistory, see `check_history`.
    `requests` holds every request. Thread-safe.
    """

    def __init__(self, wishes: Mapping[str, Wish]) -> None:
        self._wishes = {text: _steps(wish) for text, wish in wishes.items()}
        self._lock = threading.Lock()
        self.requests: list[ProviderRequest] = []

    async def acomplete(self, **kwargs: Any) -> Completion:
        """Return the next calls, or what their results say. Raise InvalidHistory.

        `kwargs` are the fields of a ProviderRequest.
        """
        request = ProviderRequest(**{**kwargs, "messages": tuple(kwargs["messages"])})
        with self._lock:
            self.requests.append(request)
        check_history(request.messages)
        return self._answer(request.messages), _usage(request.model, "believing")

    def _answer(self, messages: Sequence[Message]) -> Message:
        """Return the calls that are to be made next, or the lines of all steps that ended."""
        lines: list[str] = []
        steps, messages_since = self._latest_wish(messages)
        for step in steps:
            calls_to_make: list[ToolCall] = []
            is_done = True
            for call in step:
                outcome, text = latest_result(call, messages_since)
                if outcome in ("", "pending"):
                    call_id = f"call_{len(messages)}_{len(calls_to_make) + 1}"
                    calls_to_make.append(replace(call, id=call_id))
                lines.append(f"{call.tool_name} {outcome}: {text}")
                is_done = is_done and outcome == "done"

            if calls_to_make:
                return Message(Role.ASSISTANT, tool_calls=tuple(calls_to_make))
            if not is_done:
                break
        return Message(Role.ASSISTANT, "\n".join(lines) or "Nothing to do.")

    def _latest_wish(
        self, messages: Sequence[Message]
    ) -> tuple[list[list[ToolCall]], Sequence[Message]]:
        """Return the steps of the user's latest wish, and the messages since then."""
        for index in reversed(range(len(messages))):
            if messages[index].role is not Role.USER:
                continue
            text = without_notes(messages[index].content)
            for wish, steps in self._wishes.items():
                if wish in text:
                    return steps, messages[index:]
        return [], ()


def _steps(wish: Wish) -> list[list[ToolCall]]:
    """Return the calls of each step of a wish."""
    if isinstance(wish, ToolCall):
        return [[wish]]
    steps = []
    for step in wish:
        if isinstance(step, ToolCall):
            steps.append([step])
        else:
            steps.append(list(step))
    return steps


def latest_result(call: ToolCall, messages: Sequence[Message]) -> tuple[str, str]:
    """Return the outcome of the latest call with the name and arguments of `call`, and its text.

    The outcome is "" if there was no such call, "pending" if it is not known yet, and "waiting" if
    a program still has to decide about the call.
    """
    results = {
        message.tool_call_id: message.content for message in messages if message.role is Role.TOOL
    }
    for message in reversed(messages):
        for earlier_call in message.tool_calls:
            has_same_name = earlier_call.tool_name == call.tool_name
            if has_same_name and earlier_call.parameters == call.parameters:
                return _outcome_in(results[earlier_call.id])
    return "", ""


def _outcome_in(content: str) -> tuple[str, str]:
    """Return the outcome that the text of a result states, and what it says about it.

    A result that states no outcome is that of a tool which ran at once: "done".
    """
    for beginning, outcome in _NOT_DONE.items():
        if content.startswith(beginning):
            return outcome, content
    try:
        value = json.loads(content)
    except ValueError:
        return "done", content
    match value:
        case {"kind": "pending_confirmation"}:
            return "pending", ""
        case {"outcome": "waiting"}:
            return "waiting", ""
        case {"outcome": str(outcome), **others}:
            text = others.get("result", others.get("error", others.get("note", "")))
            if not isinstance(text, str):
                text = json.dumps(text)
            return outcome, text
    return "done", content


class LocalProvider:
    """Repeats the user's latest message, and never calls a tool. Its answers cost nothing."""

    name = "local"

    def complete(self, **kwargs: Any) -> Completion:
        """Return the user's text and the name of the requested model."""
        request = ProviderRequest(**kwargs)
        user_text = ""
        for message in request.messages:
            if message.role is Role.USER:
                user_text = message.content
        text = f"[local provider: {request.model or 'local'}] {user_text}".rstrip()
        answer = Message(Role.ASSISTANT, text)
        return answer, UsageStats(model=request.model, provider=self.name)

    async def acomplete(self, **kwargs: Any) -> Completion:
        """Do the same as `complete`."""
        return self.complete(**kwargs)

    def stream(self, **kwargs: Any) -> Iterator[StreamItem]:
        """Yield the answer of `complete` word by word, then the usage.

        Each word comes with the space after it.
        """
        answer, usage = self.complete(**kwargs)
        for line in answer.content.splitlines(keepends=True):
            *words, last = line.split(" ")
            yield from (f"{word} " for word in words)
            yield last
        yield usage

    async def astream(self, **kwargs: Any) -> AsyncGenerator[StreamItem, None]:
        """Do the same as `stream`."""
        for item in self.stream(**kwargs):
            yield item
