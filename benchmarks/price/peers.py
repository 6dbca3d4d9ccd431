"""Peers: the shop's bot in pydantic-ai and in LangChain, as their documentation shows it, on a
recorded model.

Both keep the whole conversation. On Anthropic each uses what its documentation shows for prompt
caching. A peer that is not installed is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from benchmarks.price.bot import MODELS
from benchmarks.price.shop import DANGEROUS, PROMPT, TOOLS
from tests.agent.providers.api import KEY
from tests.agent.providers.recorder import ModelRecorder

#: Says one message of a person to a bot, which has a memory.
Say = Callable[[str], object]
#: Makes a bot with these tools for a vendor; its model is the recorder.
Peer = Callable[[str, ModelRecorder, Sequence[Callable[..., str]]], Say]


def pydantic_ai(vendor: str, recorder: ModelRecorder, tools: Sequence[Callable[..., str]]) -> Say:
    """Return a bot of pydantic-ai: `Agent`, with all its messages passed to the next run."""
    from pydantic_ai import Agent

    settings: Any = None
    if vendor == "anthropic":
        settings = {
            "anthropic_cache_instructions": True,
            "anthropic_cache_tool_definitions": True,
            "anthropic_cache_messages": True,
        }
    agent = Agent(
        _pydantic_ai_model(vendor, recorder),
        instructions=PROMPT,
        tools=list(tools),
        model_settings=settings,
    )
    history: list[Any] = []

    def say(text: str) -> object:
        result = agent.run_sync(text, message_history=history)
        history[:] = result.all_messages()
        return result.output

    return say


def _pydantic_ai_model(vendor: str, recorder: ModelRecorder) -> Any:
    name = MODELS[vendor].partition(":")[2]
    if vendor == "anthropic":
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider

        client = _anthropic_client(recorder)
        return AnthropicModel(name, provider=AnthropicProvider(anthropic_client=client))
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=recorder.url(vendor), api_key=KEY)
    return OpenAIChatModel(name, provider=provider)


def _anthropic_client(recorder: ModelRecorder) -> Any:
    from anthropic import AsyncAnthropic

    return AsyncAnthropic(api_key=KEY, base_url=recorder.url("anthropic"))


def langchain(vendor: str, recorder: ModelRecorder, tools: Sequence[Callable[..., str]]) -> Say:
    """Return a bot of LangChain: `create_agent` with an InMemorySaver."""
    from langchain.agents import create_agent
    from langgraph.checkpoint.memory import InMemorySaver

    middleware: list[Any] = []
    if vendor == "anthropic":
        from langchain_anthropic.middleware import AnthropicPromptCachingMiddleware

        middleware.append(AnthropicPromptCachingMiddleware())
    agent = create_agent(
        _langchain_model(vendor, recorder),
        tools=list(tools),
        system_prompt=PROMPT,
        middleware=middleware,
        checkpointer=InMemorySaver(),
    )
    config: Any = {"configurable": {"thread_id": "ada"}}
    return lambda text: agent.invoke({"messages": [{"role": "user", "content": text}]}, config)


def _langchain_model(vendor: str, recorder: ModelRecorder) -> Any:
    name = MODELS[vendor].partition(":")[2]
    if vendor == "anthropic":
        from langchain_anthropic import ChatAnthropic

        return ChatAnthropic(model=name, api_key=KEY, base_url=recorder.url(vendor))
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(model=name, api_key=KEY, base_url=recorder.url(vendor))


def pydantic_ai_approval(recorder: ModelRecorder, text: str) -> None:
    """Let pydantic-ai call the tool that needs a yes, approve the call, and get the answer."""
    from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, Tool

    tools = [Tool(each, requires_approval=each.__name__ == DANGEROUS) for each in TOOLS]
    agent = Agent(
        _pydantic_ai_model("openai", recorder),
        instructions=PROMPT,
        tools=tools,
        output_type=[str, DeferredToolRequests],
    )
    asked = agent.run_sync(text)
    approved = DeferredToolResults()
    for call in asked.output.approvals:
        approved.approvals[call.tool_call_id] = True
    agent.run_sync(message_history=asked.all_messages(), deferred_tool_results=approved)


def langchain_approval(recorder: ModelRecorder, text: str) -> None:
    """Let LangChain call the tool that needs a yes, approve the call, and get the answer."""
    from langchain.agents import create_agent
    from langchain.agents.middleware import HumanInTheLoopMiddleware
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.types import Command

    agent = create_agent(
        _langchain_model("openai", recorder),
        tools=list(TOOLS),
        system_prompt=PROMPT,
        middleware=[HumanInTheLoopMiddleware(interrupt_on={DANGEROUS: True})],
        checkpointer=InMemorySaver(),
    )
    config: Any = {"configurable": {"thread_id": "ada"}}
    agent.invoke({"messages": [{"role": "user", "content": text}]}, config)
    agent.invoke(Command(resume={"decisions": [{"type": "approve"}]}), config)


PEERS: dict[str, Peer] = {"pydantic-ai": pydantic_ai, "LangChain": langchain}


#: The distribution of each peer.
_DISTRIBUTIONS = {"pydantic-ai": "pydantic-ai-slim", "LangChain": "langchain"}


def peer_versions() -> dict[str, str]:
    """Return the version of each peer, "" for one that is not installed."""
    versions = {}
    for name, distribution in _DISTRIBUTIONS.items():
        try:
            versions[name] = version(distribution)
        except PackageNotFoundError:
            versions[name] = ""
    return versions


def installed_peers() -> dict[str, Peer]:
    """Return the peers that are installed, by name."""
    return {name: PEERS[name] for name, installed in peer_versions().items() if installed}


def approvals() -> dict[str, Callable[[ModelRecorder, str], None]]:
    """Return how each installed peer runs one confirmed action."""
    ways = {"pydantic-ai": pydantic_ai_approval, "LangChain": langchain_approval}
    return {name: ways[name] for name in installed_peers()}
