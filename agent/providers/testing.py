"""Providers for tests and demos.

ScriptedProvider gives prepared answers. BelievingModel works for its user and believes what the
results of tools say. Both refuse a history that a vendor would refuse. LocalProvider repeats the
user's text.
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
#: What a BelievingModel does for a request of its user, step by step.
#: The calls of one list are made in one answer.
Wish = ToolCall | Sequence[ToolCall | Sequence[ToolCall]]

#: How the result of a call that ran at once begins if it was not done, and its outcome.
_NOT_DONE = {"Error": "failed", "Not run": "replaced"}
#: Ids of calls and names of tools that all vendors accept.
_LEGAL = re.compile(r"[A-Za-z0-9_-]{1,64}")


class InvalidHistory(RequestRefusedError):
    """Raised when a model is shown a history that a vendor would refuse.

    The bot answers as for a real refusal.
    """


def check_history(messages: Sequence[Message]) -> None:
    """Raise InvalidHistory for a request that a vendor would refuse.

    It begins with a message of the user, and ends with one of the user or a result. No answer is
    empty. Each call has an id of its own, a name, and exactly one result, which stands before any
    other message. The result of a call that waits for a decision says so.
    """
    spoken = [message for message in messages if message.role is not Role.SYSTEM]
    if not spoken or spoken[0].role is not Role.USER:
        raise InvalidHistory("the history does not begin with a message of the user")
    if spoken[-1].role is Role.ASSISTANT:
        raise InvalidHistory("the history ends with an answer: there is nothing to answer")
    used_ids: set[str] = set()
    open_calls: dict[str, ToolCall] = {}
    for number, message in enumerate(spoken, 1):
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
    for call in open_calls.values():
        raise InvalidHistory(
            f"the call {call.id!r} of {call.tool_name!r} has no result before {where}"
        )


def _check_call(call: ToolCall, used_ids: set[str], where: str) -> None:
    """Raise InvalidHistory for a call that no vendor accepts, and note its id."""
    if not (_LEGAL.fullmatch(call.id) and _LEGAL.fullmatch(call.tool_name)):
        raise InvalidHistory(
            f"{where} has a call with the id {call.id!r} and the name {call.tool_name!r}"
        )
    if call.id in used_ids:
        raise InvalidHistory(f"{where} uses the id {call.id!r} of an earlier call again")
    json.dumps(call.parameters)
    used_ids.add(call.id)


class ScriptedProvider:
    """Gives prepared answers in order.

    `requests` holds every request, also those answered with an exception.

    With `strict`, a history that a vendor would refuse is refused
    with InvalidHistory (`check_history`).
    """

    def __init__(self, lines: Iterable[ScriptLine], *, strict: bool = True) -> None:
        self._lines = list(lines)
        self._strict = strict
        self._lock = threading.Lock()
        self.requests: list[ProviderRequest] = []

    async def acomplete(self, **kwargs: Any) -> Completion:
        """Return the next answer.

        Raise ProviderError at the end of the script, and InvalidHistory.
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
        if isinstance(line, str):
            line = Message(Role.ASSISTANT, line)
        elif not isinstance(line, Message):
            line = Message(
                Role.ASSISTANT, tool_calls=tuple([line] if isinstance(line, ToolCall) else line)
            )
        return line, UsageStats(1, 1, 2, model=kwargs["model"], provider="scripted")


class BelievingModel:
    """Works for its user as a real model would that believes what its tools return.

    It believes nothing else.

    `wishes` says what to do for a message of the user that contains a text, such as {"refund order
    17": ToolCall(...)}. The latest such message counts. The model goes through its steps. It makes
    a call again while no result says that it ended: so a result that reads `pending_confirmation`
    for ever makes it ask for ever. A step that was not done ends its work. Then it answers with one
    line for each call, such as `refund done: Refund R-9 booked.`

    A history that a vendor would refuse is refused with InvalidHistory.
    `requests` holds every request.
    """

    def __init__(self, wishes: Mapping[str, Wish]) -> None:
        self._wishes = {text: _steps(wish) for text, wish in wishes.items()}
        self._lock = threading.Lock()
        self.requests: list[ProviderRequest] = []

    async def acomplete(self, **kwargs: Any) -> Completion:
        """Return the next calls, or what the results say. Raise InvalidHistory."""
        request = ProviderRequest(**{**kwargs, "messages": tuple(kwargs["messages"])})
        with self._lock:
            self.requests.append(request)
        check_history(request.messages)
        return self._answer(request.messages), UsageStats(
            1, 1, 2, model=request.model, provider="believing"
        )

    def _answer(self, messages: Sequence[Message]) -> Message:
        lines: list[str] = []
        steps, since = self._latest_wish(messages)
        for step in steps:
            results = [(call, latest_result(call, since)) for call in step]
            missing = [call for call, (outcome, _) in results if outcome in ("", "pending")]
            if missing:
                numbered = enumerate(missing, 1)
                calls = [
                    replace(call, id=f"call_{len(messages)}_{number}") for number, call in numbered
                ]
                return Message(Role.ASSISTANT, tool_calls=tuple(calls))
            lines += [f"{call.tool_name} {outcome}: {text}" for call, (outcome, text) in results]
            if any(outcome != "done" for _, (outcome, _) in results):
                break
        return Message(Role.ASSISTANT, "\n".join(lines) or "Nothing to do.")

    def _latest_wish(
        self, messages: Sequence[Message]
    ) -> tuple[list[list[ToolCall]], Sequence[Message]]:
        """Return the steps of the user's latest wish, and the messages since then."""
        for at in reversed(range(len(messages))):
            if messages[at].role is not Role.USER:
                continue
            text = without_notes(messages[at].content)
            for wanted, steps in self._wishes.items():
                if wanted in text:
                    return steps, messages[at:]
        return [], ()


def _steps(wish: Wish) -> list[list[ToolCall]]:
    """Return the calls of each step."""
    if isinstance(wish, ToolCall):
        return [[wish]]
    return [[step] if isinstance(step, ToolCall) else list(step) for step in wish]


def latest_result(call: ToolCall, messages: Sequence[Message]) -> tuple[str, str]:
    """Return the outcome of the latest such call and its text; an outcome of "" if there was none."""
    results = {
        message.tool_call_id: message.content for message in messages if message.role is Role.TOOL
    }
    for message in reversed(messages):
        for made in message.tool_calls:
            if (made.tool_name, made.parameters) == (call.tool_name, call.parameters):
                return _believed(results[made.id])
    return "", ""


def _believed(content: str) -> tuple[str, str]:
    """Return the outcome that a result tells, and its text.

    What came at once was done, unless it says otherwise.
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
            return outcome, text if isinstance(text, str) else json.dumps(text)
    return "done", content


class LocalProvider:
    """Repeats the user's latest message at no cost, and never calls a tool."""

    name = "local"

    def complete(self, **kwargs: Any) -> Completion:
        """Return the user's text and the name of the requested model."""
        request = ProviderRequest(**kwargs)
        users = (
            message.content for message in reversed(request.messages) if message.role is Role.USER
        )
        answer = Message(
            Role.ASSISTANT,
            f"[local provider: {request.model or 'local'}] {next(users, '')}".rstrip(),
        )
        return answer, UsageStats(model=request.model, provider=self.name)

    async def acomplete(self, **kwargs: Any) -> Completion:
        """Do the same as `complete`."""
        return self.complete(**kwargs)

    def stream(self, **kwargs: Any) -> Iterator[StreamItem]:
        """Yield the answer of `complete` word by word, then the usage.

        Each word has the space after it.
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
