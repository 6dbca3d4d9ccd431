"""Streamed calls that all have the number 0: the library would make one broken call of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from openai.types.chat.chat_completion_chunk import ChoiceDeltaToolCall
from pydantic_ai.models.openai import OpenAIChatModel

from sayso.agent.messages import ToolCall
from sayso.agent.providers.model_request import CallNumbers
from sayso.agent.providers.vendors import OllamaProvider
from tests.agent.providers.conftest import Server
from tests.agent.providers.test_contract import called, pieces, stock

CALLS = [called("get_weather", "call_a", city="Lima"), called("search_docs", "call_b", query="rain")]


def streamed(server: Server) -> list[Any]:
    """What a streamed answer of Ollama's parallel calls comes to."""
    server.script({"deltas": "ollama", "calls": CALLS})
    provider = OllamaProvider("llama3.2", f"{server.url}/local/v1")
    return [piece for piece in pieces(provider, tools=[stock.schema()]) if isinstance(piece, ToolCall)]


def numbers(*deltas: tuple[int, str]) -> list[int]:
    """The numbers that deltas of these indices and ids are given."""
    call_numbers = CallNumbers()
    return [call_numbers.number(ChoiceDeltaToolCall(index=index, id=given or None)) for index, given in deltas]


def test_parallel_calls_of_one_number_stay_apart(server: Server) -> None:
    """Names and arguments of each."""
    assert streamed(server) == [
        ToolCall("get_weather", {"city": "Lima"}, "call_a"),
        ToolCall("search_docs", {"query": "rain"}, "call_b"),
    ]


def test_the_library_alone_mixes_them(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The day it does not, our renumbering can go."""
    monkeypatch.setattr("sayso.agent.providers.model_request.ChatModel", OpenAIChatModel)
    assert len(streamed(server)) == 1


def test_whole_answers_need_no_numbers(server: Server) -> None:
    """The same calls, not streamed."""
    server.script({"calls": CALLS})
    provider = OllamaProvider("llama3.2", f"{server.url}/local/v1")
    request = {"model": "", "system_prompt": "", "messages": (), "tools": [stock.schema()]}
    answer, _ = asyncio.run(provider.acomplete(**request))
    assert [call.id for call in answer.tool_calls] == ["call_a", "call_b"]


def test_deltas_without_an_id_belong_to_the_call_before() -> None:
    """Whether calls are numbered properly, all 0, or by turns."""
    assert numbers((0, "a"), (0, ""), (0, ""), (1, "b"), (1, "")) == [0, 0, 0, 1, 1]
    assert numbers((0, "a"), (0, ""), (0, "b"), (0, ""), (0, "b")) == [0, 0, 1, 1, 1]
    assert numbers((0, "a"), (1, "b"), (0, ""), (1, "")) == [0, 1, 0, 1]
    assert numbers((0, ""), (0, ""), (1, "")) == [0, 0, 1]
