"""What requests have for the vendors' prompt caches: Anthropic's marks, and OpenAI's key of a conversation."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from sayso.agent import Agent, AgentConfig
from sayso.agent.channel.channel_agent import ChannelAgent
from sayso.agent.memory.conversation import ConversationMemory
from sayso.agent.messages import Message, Role, UsageStats
from sayso.agent.observability.builtin import MetricsObserver
from sayso.agent.providers.base import (
    ProviderError,
    ProviderRequest,
    RequestRefusedError,
    StreamItem,
    acall,
)
from sayso.agent.providers.fallback import FallbackProvider
from sayso.agent.providers.testing import ScriptedProvider
from sayso.agent.providers.vendors import AnthropicProvider, OpenAIProvider
from sayso.agent.run.text_tools import TextToolProvider
from sayso.config.wiring.gauges import metrics_endpoint
from sayso.pending.store import InMemoryPendingStore
from tests.agent.providers.api import KEY
from tests.agent.providers.conftest import MAKERS, ROOT, Server, responses
from tests.agent.providers.test_contract import ask, asked, stock

#: The second turn of a conversation, with what the memories know in front of the current message.
TURN = (
    Message(Role.USER, "one"),
    Message(Role.ASSISTANT, "two"),
    Message(Role.SYSTEM, "Notes."),
    Message(Role.USER, "three"),
)


def marked_texts(body: dict[str, Any]) -> list[str]:
    """Return the texts of the messages with a mark."""
    blocks = [block for message in body["messages"] for block in message["content"]]
    return [block["text"] for block in blocks if "cache_control" in block]


@pytest.fixture
def proxy(server: Server) -> AnthropicProvider:
    """Return a provider whose address is not Anthropic's own."""
    return AnthropicProvider(KEY, base_url=server.url)


REFUSED = {"status": 400, "message": "tools.0.cache_control: Extra inputs are not permitted"}


def test_anthropic_marks_the_stable_messages_and_the_last_one(server: Server) -> None:
    """The next turn repeats the messages up to the first mark; the next call of this turn, all of them."""
    server.script({"text": "Hi"})
    ask(MAKERS["anthropic"](server.url), *TURN, tools=[stock.schema()], conversation_key="k")
    (body,) = server.bodies
    first, last = marked_texts(body)
    assert (first, last.endswith("three")) == ("two", True)
    assert json.dumps(body).count('"cache_control"') == 4


def test_next_turn_repeats_the_prompt_up_to_a_mark(server: Server) -> None:
    """Otherwise nothing of a conversation would ever be read from the cache."""
    server.script({"text": "four"}, {"text": "six"})
    provider = MAKERS["anthropic"](server.url)
    history = [TURN[0], TURN[1], TURN[3], Message(Role.ASSISTANT, "four")]
    ask(provider, *TURN, conversation_key="k")
    ask(
        provider,
        *history,
        Message(Role.SYSTEM, "Other notes."),
        Message(Role.USER, "five"),
        conversation_key="k",
    )
    first, second = server.bodies
    assert marked_texts(second)[0] == "four"
    assert [each["content"][0]["text"] for each in second["messages"][:2]] == [
        "one",
        marked_texts(first)[0],
    ]


def test_notes_that_no_request_repeats_are_not_marked(server: Server) -> None:
    """Without tools a turn is one request, and the next turn has other notes."""
    server.script({"text": "Hi"})
    ask(MAKERS["anthropic"](server.url), *TURN, conversation_key="k")
    assert marked_texts(server.bodies[0]) == ["two"]


def test_messages_of_a_single_request_are_not_marked(server: Server) -> None:
    """A request for a summary would pay for writing them, and nothing would read them."""
    server.script({"text": "Hi"})
    ask(MAKERS["anthropic"](server.url), *TURN)
    assert marked_texts(server.bodies[0]) == []


def test_calls_of_one_turn_are_marked_without_a_conversation(server: Server) -> None:
    """The second call of the turn repeats the first one."""
    server.script({"text": "Hi"})
    ask(MAKERS["anthropic"](server.url), Message(Role.USER, "How many?"), tools=[stock.schema()])
    assert marked_texts(server.bodies[0]) == ["How many?"]


def test_reasoning_is_never_marked(server: Server) -> None:
    """Anthropic refuses a mark on it, and the fake does, too."""
    server.script(
        {"thinks": ["Hm."], "calls": [{"name": "stock", "arguments": {"item": "tea"}}]},
        {"text": "Seven"},
    )
    provider = MAKERS["anthropic"](server.url, model_settings={"thinking_budget": 1024})
    result = Agent([stock], provider, AgentConfig(max_tokens=4000)).run("How many?")
    assert result.content == "Seven"
    assert server.bodies[1]["messages"][-1]["content"][0]["cache_control"]["type"] == "ephemeral"


def test_proxy_that_refuses_marks_is_asked_without_them(
    server: Server, proxy: AnthropicProvider, caplog: pytest.LogCaptureFixture
) -> None:
    """It is asked twice once; later requests have no marks."""
    server.script(REFUSED, {"text": "Hi"}, {"text": "Hi again"})
    answers = [ask(proxy, conversation_key="k")[0].content for _ in range(2)]
    assert answers == ["Hi", "Hi again"]
    assert ["cache_control" in json.dumps(body) for body in server.bodies] == [True, False, False]
    assert [record.message for record in caplog.records] == ["provider.cache_refused"]


def test_requests_that_are_refused_at_the_same_time_are_all_answered(
    server: Server, proxy: AnthropicProvider, caplog: pytest.LogCaptureFixture
) -> None:
    """The first refusal is handled when the second one arrives."""
    server.script({**REFUSED, "delay": 0.1}, {**REFUSED, "delay": 0.5}, *[{"text": "Hi"}] * 2)

    async def ask_twice() -> list[Any]:
        asks = (acall(proxy, asked(conversation_key=key)) for key in ("a", "b"))
        return await asyncio.gather(*asks)

    answers = asyncio.run(ask_twice())
    assert [message.content for message, _ in answers] == ["Hi", "Hi"]
    assert [record.message for record in caplog.records] == ["provider.cache_refused"]


def test_proxy_that_refuses_marks_streams_without_them(
    server: Server, proxy: AnthropicProvider
) -> None:
    """The refusal comes before the first word."""
    server.script(REFUSED, {"text": "Hi there"})

    async def collect() -> str:
        request = ProviderRequest("", "Be brief.", TURN, conversation_key="k")
        return "".join(
            [item async for item in proxy.astream(**request.as_kwargs()) if isinstance(item, str)]
        )

    assert asyncio.run(collect()) == "Hi there"


@pytest.mark.parametrize(
    "refusal",
    [
        {"status": 400, "message": "Extra inputs are not permitted"},
        {"status": 400, "message": "Unknown parameter"},
        {"status": 500, "message": "KeyError: 'cache_control'"},
    ],
)
def test_refusal_of_an_unknown_field_or_a_server_that_breaks_at_it_is_about_marks(
    server: Server, proxy: AnthropicProvider, refusal: dict[str, Any]
) -> None:
    """Not every proxy names the field, and not every one answers 400. The first message gets its answer."""
    server.script(refusal, {"text": "Hi"})
    assert ask(proxy, conversation_key="k")[0].content == "Hi"
    assert not proxy.asks_to_cache


def test_server_that_is_down_keeps_marks(server: Server, proxy: AnthropicProvider) -> None:
    """A status 500 alone says nothing about them."""
    server.script({"status": 500, "message": "down"})
    with pytest.raises(ProviderError):
        ask(proxy, conversation_key="k")
    assert len(server.bodies) == 1


def test_refusal_for_another_reason_is_not_about_marks(
    server: Server, proxy: AnthropicProvider
) -> None:
    """It is not asked again here."""
    server.script({"status": 400, "message": "could not process image"})
    with pytest.raises(RequestRefusedError, match="could not process image"):
        ask(proxy, conversation_key="k")
    assert len(server.bodies) == 1


def test_refusal_without_marks_too_keeps_them(server: Server, proxy: AnthropicProvider) -> None:
    """A server that does not say why is asked again once; its second refusal shows that it was not about marks."""
    silent = {"status": 422, "raw": json.dumps({"detail": [{"type": "extra_forbidden"}]})}
    server.script(silent, silent, {"text": "Hi"})
    with pytest.raises(RequestRefusedError):
        ask(proxy, conversation_key="k")
    ask(proxy, conversation_key="k")
    assert ["cache_control" in json.dumps(body) for body in server.bodies] == [True, False, True]


def test_server_that_took_marks_is_not_asked_again_without_them(
    server: Server, proxy: AnthropicProvider
) -> None:
    """Its next refusal has another reason."""
    server.script({"text": "Hi"}, {"status": 400, "message": "no"})
    ask(proxy, conversation_key="k")
    with pytest.raises(RequestRefusedError):
        ask(proxy, conversation_key="k")
    assert len(server.bodies) == 2


@pytest.mark.parametrize("make", [MAKERS["openai"], responses])
def test_openai_gets_the_key_of_the_conversation(server: Server, make: Any) -> None:
    """In both of its APIs. A request of no conversation has none, and a setting turns it off."""
    server.script({"text": "Hi"}, {"text": "Hi"}, {"text": "Hi"})
    ask(make(server.url), conversation_key="k1")
    ask(make(server.url))
    ask(make(server.url, cache_prompt=False), conversation_key="k1")
    assert [body.get("prompt_cache_key") for body in server.bodies] == ["k1", None, None]


@pytest.mark.parametrize("name", ["compatible", "ollama", "gemini"])
def test_other_servers_get_no_key(server: Server, name: str) -> None:
    """Groq, Cerebras, Mistral and Gemini answer 400 or 422 to the unknown field."""
    server.script({"text": "Hi"})
    ask(MAKERS[name](server.url), conversation_key="k1")
    assert ["k1" in json.dumps(body) for body in server.bodies] == [False]


def test_other_server_gets_the_key_where_the_operator_says_so(server: Server) -> None:
    """A proxy in front of OpenAI, for one."""
    server.script({"text": "Hi"})
    ask(OpenAIProvider(KEY, "m", f"{server.url}/v1", prompt_cache_key=True), conversation_key="k1")
    assert server.bodies[0]["prompt_cache_key"] == "k1"


def test_key_of_the_operator_replaces_that_of_the_conversation(server: Server) -> None:
    """Some prefer one key for a whole bot."""
    server.script({"text": "Hi"})
    ask(
        MAKERS["openai"](server.url, model_settings={"prompt_cache_key": "shop"}),
        conversation_key="k1",
    )
    assert server.bodies[0]["prompt_cache_key"] == "shop"


@pytest.mark.parametrize(("model", "is_marked"), [("gpt-5.6", True), ("gpt-5-mini", False)])
def test_openai_models_that_read_up_to_marks_get_one(
    server: Server, model: str, is_marked: bool
) -> None:
    """GPT-5.6 itself marks the last message, which the next turn has without the notes before it."""
    server.script({"text": "Hi"})
    ask(MAKERS["openai"](server.url), *TURN, model=model, conversation_key="k")
    user_message = server.bodies[0]["messages"][1]
    assert ("prompt_cache_breakpoint" in json.dumps(user_message)) == is_marked
    assert json.dumps(server.bodies[0]).count("prompt_cache_breakpoint") == int(is_marked)


FEW_TOKENS = UsageStats(10, 1, 11)


class Recorder(ScriptedProvider):
    """Records the key of each request."""

    supports_conversation_key = True

    def __init__(self, usage: UsageStats = FEW_TOKENS) -> None:
        super().__init__([])
        self.keys: list[str | None] = []
        self._usage = usage

    async def acomplete(self, **request: Any) -> tuple[Message, UsageStats]:
        self.keys.append(request.get("conversation_key"))
        return Message(Role.ASSISTANT, "ok"), self._usage

    async def astream(self, **request: Any) -> AsyncIterator[StreamItem]:
        answer, usage = await self.acomplete(**request)
        yield answer.content
        yield usage


class Exact:
    """A provider of a user, without a parameter for the key."""

    async def acomplete(
        self, *, model: str, system_prompt: str, messages: Any, tools: Any, temperature: Any, max_tokens: int,
        timeout: float | None,
    ) -> tuple[Message, UsageStats]:  # fmt: skip
        return Message(Role.ASSISTANT, "exact"), UsageStats()


def test_key_is_that_of_the_person_in_the_conversation() -> None:
    """It is the same in each turn, another one for each person, and holds no id."""
    provider = Recorder()
    agent = ChannelAgent(Agent((), provider, AgentConfig(name="shop")), InMemoryPendingStore())
    for user in ("+4915112345678", "+4915112345678", "U2"):
        agent.ask_channel(user, "Hello", channel_id="wa", conversation_id=user)
    first, again, other = provider.keys
    assert first == again != other
    assert first is not None
    assert (len(first), "4915112345678" in first) == (32, False)


def test_key_is_the_same_in_each_process_with_the_same_secret() -> None:
    """Workers share a conversation. Another secret gives other keys, so no number can be guessed."""
    lines = "from tests.agent.providers.test_prompt_cache import Recorder, run_with_session; print(run_with_session(b'x'))"
    commands = [[sys.executable, "-c", lines] for _ in range(2)]
    keys = [
        subprocess.run(each, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for each in commands
    ]
    assert keys[0] == keys[1] == f"{run_with_session(b'x')}\n"
    assert run_with_session(b"x") != run_with_session(b"y")


def run_with_session(secret: bytes) -> str | None:
    """Return the key of a run with a session."""
    from sayso.agent.memory.sessions import InMemorySessionStore

    provider = Recorder()
    config = AgentConfig(
        session_store=InMemorySessionStore(), session_id="+49151", conversation_secret=secret
    )
    Agent((), provider, config, ConversationMemory()).run("Hello")
    return provider.keys[0]


def test_agents_own_conversation_has_a_key_and_a_batch_has_none() -> None:
    """The runs of a batch are no turns of one conversation."""
    provider = Recorder()
    agent = Agent((), provider, AgentConfig(), ConversationMemory())
    agent.run("One")
    agent.run("Two")
    agent.batch(["Three"])
    Agent((), provider, AgentConfig()).run("Four")
    first, second, batched, without_memory = provider.keys
    assert first == second is not None
    assert (batched, without_memory) == (None, None)


def test_side_calls_have_no_key() -> None:
    """The prompt of a summary has nothing in common with that of the conversation."""
    provider = Recorder()
    side = Recorder()
    config = AgentConfig(summarize_on_trim=True, summarize_provider=side, summarize_model="m")
    agent = Agent((), provider, config, ConversationMemory(max_messages=2))
    agent.run("One")
    agent.run("Two")
    assert side.keys == [None]


def test_wrapped_providers_get_the_key_and_others_do_not() -> None:
    """A fallback and a provider with tools as text pass it on to those that know it."""
    provider = Recorder()
    request = ProviderRequest("m", "", (Message(Role.USER, "Hi"),), conversation_key="k")
    chain = FallbackProvider([TextToolProvider(FallbackProvider([provider])), Exact()])
    assert asyncio.run(acall(chain, request))[0].content == "ok"
    assert provider.keys == ["k"]
    assert asyncio.run(acall(FallbackProvider([Exact()]), request))[0].content == "exact"


def test_cached_tokens_reach_the_result_in_a_stream_and_through_a_fallback(server: Server) -> None:
    """Reading costs a tenth, writing a quarter more: 200 plain, 600 read and 200 written tokens, a dollar a million."""
    answer = {"text": "Hi", "usage": [1000, 0, 600, 200]}
    server.script(answer, {"status": 500}, answer)
    whole = Agent((), MAKERS["anthropic"](server.url)).run("Hello").usage
    failing = FallbackProvider([MAKERS["openai"](server.url), MAKERS["anthropic"](server.url)])
    config = AgentConfig(max_retries=0)

    async def stream() -> UsageStats:
        result = await Agent((), failing, config).arun("Hello", stream_handler=lambda text: None)
        return result.usage

    for usage in (whole, asyncio.run(stream())):
        assert (usage.prompt_tokens, usage.cache_read_tokens, usage.cache_write_tokens) == (
            1000,
            600,
            200,
        )
        assert usage.cost_usd == pytest.approx((200 + 60 + 250) / 1_000_000)


def test_side_calls_are_priced_and_counted() -> None:
    """A summary by a model of the operator's own costs what `prices` say, and is in the metrics."""
    model = "side-model-of-this-test"
    side = Recorder(UsageStats(1_000_000, 0, 1_000_000, model=model, cache_read_tokens=250_000))
    config = AgentConfig(
        summarize_on_trim=True, summarize_provider=side, summarize_model=model, prices={model: (2.0, 2.0, 0.4, 2.0)},
        observers=[MetricsObserver()],
    )  # fmt: skip
    agent = Agent((), Recorder(), config, ConversationMemory(max_messages=2))
    agent.run("One")
    assert agent.run("Two").usage.cost_usd == pytest.approx(1.6)
    body = metrics_endpoint(ROOT).answer("")[2].decode()
    assert f'sayso_model_tokens_total{{model="{model}",type="cache_read"}} 250000.0' in body
    assert f'sayso_model_cache_hit_ratio{{model="{model}"}} 0.25' in body
    assert f'sayso_model_cost_dollars_total{{model="{model}"}} 1.6' in body


@pytest.mark.parametrize("vendor", ["anthropic", "openai"])
def test_tokens_of_a_fallback_are_counted_for_its_own_model(server: Server, vendor: str) -> None:
    """The share of cached tokens of the first model stays true, also where both models are of one vendor."""
    server.script({"status": 500}, {"text": "Hi", "usage": [100, 0, 40]})
    models = (f"model-before-{vendor}", f"model-before-{vendor}-mini")
    first = MAKERS["openai"](server.url)
    second = MAKERS[vendor](server.url)
    first.default_model, second.default_model = models
    Agent(
        (),
        FallbackProvider([first, second]),
        AgentConfig(max_retries=0, observers=[MetricsObserver()]),
    ).run("Hello")
    body = metrics_endpoint(ROOT).answer("")[2].decode()
    assert [f'sayso_model_cache_hit_ratio{{model="{model}"}} 0.4' in body for model in models] == [
        False,
        True,
    ]
