"""Streamed calls that all have index 0, which the vendor's library would merge into one broken call."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from openai.types.chat.chat_completion_chunk import ChoiceDeltaToolCall
from pydantic_ai.models.openai import OpenAIChatModel

from sayso.agent.messages import ToolCall
from sayso.agent.providers.base import ProviderError
from sayso.agent.providers.model_openai import CallNumbers
from sayso.agent.providers.vendors import OllamaProvider
from tests.agent.providers.conftest import Server
from tests.agent.providers.test_contract import called, pieces, stock

CALLS = [
    called("get_weather", "call_a", city="Lima"),
    called("search_docs", "call_b", query="rain"),
]


def streamed(server: Server) -> list[Any]:
    """Return the calls of a streamed answer with Ollama's parallel calls."""
    server.script({"deltas": "ollama", "calls": CALLS})
    provider = OllamaProvider("llama3.2", f"{server.url}/local/v1")
    return [
        piece for piece in pieces(provider, tools=[stock.schema()]) if isinstance(piece, ToolCall)
    ]


def numbers(*deltas: tuple[int, str]) -> list[int]:
    """Return the numbers given to deltas with these indices and ids."""
    call_numbers = CallNumbers()
    return [
        call_numbers.number(ChoiceDeltaToolCall(index=index, id=given or None))
        for index, given in deltas
    ]


def test_parallel_calls_with_one_index_stay_separate(server: Server) -> None:
    """Each keeps its name and arguments."""
    assert streamed(server) == [
        ToolCall("get_weather", {"city": "Lima"}, "call_a"),
        ToolCall("search_docs", {"query": "rain"}, "call_b"),
    ]


def test_library_alone_merges_the_calls(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the library separates them, the renumbering can be removed."""
    monkeypatch.setattr("sayso.agent.providers.model_openai.ChatModel", OpenAIChatModel)
    assert len(streamed(server)) == 1


def test_complete_answers_need_no_renumbering(server: Server) -> None:
    """The calls are the same without streaming."""
    server.script({"calls": CALLS})
    provider = OllamaProvider("llama3.2", f"{server.url}/local/v1")
    request = {"model": "", "system_prompt": "", "messages": (), "tools": [stock.schema()]}
    answer, _ = asyncio.run(provider.acomplete(**request))
    assert [call.id for call in answer.tool_calls] == ["call_a", "call_b"]


@pytest.mark.parametrize("style", ["object", "null", "no id"])
def test_whole_call_is_read_however_a_server_writes_it(server: Server, style: str) -> None:
    """The library would refuse the answer, though it reads the same in a stream."""
    function = {"name": "search_docs", "arguments": {"object": {}, "null": None}.get(style, "{}")}
    call = {
        "type": "function",
        "function": function,
        **({} if style == "no id" else {"id": "call_a"}),
    }
    choice = {
        "index": 0,
        "finish_reason": "tool_calls",
        "message": {"role": "assistant", "tool_calls": [call]},
    }
    answer = {
        "id": "1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [choice],
    }
    server.script({"raw": json.dumps(answer)})
    provider = OllamaProvider("llama3.2", f"{server.url}/local/v1")
    message, _ = asyncio.run(
        provider.acomplete(model="", system_prompt="", messages=(), tools=[stock.schema()])
    )
    assert [(each.tool_name, each.parameters) for each in message.tool_calls] == [
        ("search_docs", {})
    ]


def test_whole_answer_is_read_without_its_formal_fields(server: Server) -> None:
    """The library would refuse it, though it reads the same in a stream."""
    server.script({"raw": json.dumps({"choices": [{"message": {"content": "Hi"}}]})})
    provider = OllamaProvider("llama3.2", f"{server.url}/local/v1")
    message, usage = asyncio.run(provider.acomplete(model="", system_prompt="", messages=()))
    assert (message.content, usage.model) == ("Hi", "llama3.2")


@pytest.mark.parametrize("ids", [("call_a", "call_b"), (None, None)], ids=["ids", "no ids"])
def test_whole_answer_is_read_where_a_stream_was_asked_for(
    server: Server, ids: tuple[str | None, ...]
) -> None:
    """Some servers cannot stream, or not with tools."""
    calls = [
        {"id": each, "function": {"name": "search_docs", "arguments": {"query": f"{n}"}}}
        for n, each in enumerate(ids)
    ]
    choice = {"message": {"role": "assistant", "content": "I look.", "tool_calls": calls}}
    server.script(
        {
            "raw": json.dumps(
                {"choices": [choice], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}
            )
        }
    )
    provider = OllamaProvider("llama3.2", f"{server.url}/local/v1")
    items = pieces(provider, tools=[stock.schema()])
    assert "".join(each for each in items if isinstance(each, str)) == "I look."
    found = [each for each in items if isinstance(each, ToolCall)]
    assert [(each.tool_name, each.parameters) for each in found] == [
        ("search_docs", {"query": "0"}),
        ("search_docs", {"query": "1"}),
    ]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"code": 429, "message": "slow down"}, "busy"),
        ("slow down", "away"),  # a text has no code
    ],
)
def test_error_in_place_of_a_stream_is_told(server: Server, error: object, kind: str) -> None:
    """The status is 200 and the body is JSON."""
    server.script({"raw": json.dumps({"error": error})})
    provider = OllamaProvider("llama3.2", f"{server.url}/local/v1")
    with pytest.raises(ProviderError, match="slow down") as caught:
        pieces(provider)
    assert caught.value.kind == kind


def test_only_chunk_of_a_stream_may_be_declared_as_json(server: Server) -> None:
    """It has a `delta` where a whole answer has a `message`."""
    choice = {"index": 0, "delta": {"content": "Hi"}, "finish_reason": "stop"}
    server.script({"raw": json.dumps({"object": "chat.completion.chunk", "choices": [choice]})})
    provider = OllamaProvider("llama3.2", f"{server.url}/local/v1")
    assert "".join(each for each in pieces(provider) if isinstance(each, str)) == "Hi"


@pytest.mark.parametrize("body", ['{"choices": [{"mess', '{"a": 1}\n{"b": 2}', '[{"error": 1}]'])
def test_broken_json_in_place_of_a_stream_is_worth_a_retry(server: Server, body: str) -> None:
    """It is cut off, or no answer at all."""
    server.script({"raw": body})
    provider = OllamaProvider("llama3.2", f"{server.url}/local/v1")
    with pytest.raises(ProviderError) as caught:
        pieces(provider)
    assert caught.value.retryable


def test_mark_behind_the_name_of_a_tool_is_dropped(server: Server) -> None:
    """Servers of gpt-oss pass on a mark of its own format."""
    server.script({"calls": [called("search_docs<|channel|>commentary", "call_a", query="rain")]})
    provider = OllamaProvider("llama3.2", f"{server.url}/local/v1")
    calls = [
        piece for piece in pieces(provider, tools=[stock.schema()]) if isinstance(piece, ToolCall)
    ]
    assert [call.tool_name for call in calls] == ["search_docs"]


def test_empty_error_beside_an_answer_is_none(server: Server) -> None:
    """Some servers write each field of theirs, also an empty one."""
    server.script({"raw": json.dumps({"error": {}, "choices": [{"message": {"content": "Hi"}}]})})
    provider = OllamaProvider("llama3.2", f"{server.url}/local/v1")
    message, _ = asyncio.run(provider.acomplete(model="", system_prompt="", messages=()))
    assert message.content == "Hi"


def test_name_in_each_delta_is_read_once(server: Server) -> None:
    """Some servers repeat it beside each piece of the arguments."""
    server.script({"deltas": "repeated", "calls": CALLS})
    provider = OllamaProvider("llama3.2", f"{server.url}/local/v1")
    calls = [
        piece for piece in pieces(provider, tools=[stock.schema()]) if isinstance(piece, ToolCall)
    ]
    assert [call.tool_name for call in calls] == ["get_weather", "search_docs"]
    assert calls[0].parameters == {"city": "Lima"}


def test_deltas_without_an_id_belong_to_the_previous_call() -> None:
    """Indices may be correct, all 0, or alternating."""
    assert numbers((0, "a"), (0, ""), (0, ""), (1, "b"), (1, "")) == [0, 0, 0, 1, 1]
    assert numbers((0, "a"), (0, ""), (0, "b"), (0, ""), (0, "b")) == [0, 0, 1, 1, 1]
    assert numbers((0, "a"), (1, "b"), (0, ""), (1, "")) == [0, 1, 0, 1]
    assert numbers((0, ""), (0, ""), (1, "")) == [0, 0, 1]
