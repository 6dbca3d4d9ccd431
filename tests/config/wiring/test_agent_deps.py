"""Agent dependencies: memories, caches, budgets, guards and observers of an agent follow the YAML."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from sayso.agent import (
    Agent,
    AgentConfig,
    AgentResult,
    AsyncAgentObserver,
    InMemoryCache,
    LoggingObserver,
    MemoryBudget,
    RedisBudget,
    RedisCache,
    ScriptedProvider,
)
from sayso.agent.guards.guardrails import GuardrailAction
from sayso.channels.media_store import LocalMediaStore
from sayso.config.settings.loader import ConfigError, load_settings
from sayso.config.settings.schema import Settings
from sayso.config.wiring.agents import AgentDeps, load_bot_tools, terminal_agent
from sayso.config.wiring.bootstrap import bootstrap
from sayso.config.wiring.redis_parts import RedisParts
from sayso.ops.checks.describe import describe
from sayso.ops.checks.explain import explain

PLUGINS = """
from sayso.agent import AgentObserver
from sayso.agent import Guardrail

class Watch(AgentObserver):
    pass

class NoShouting(Guardrail):
    name = "no_shouting"

def broken():
    1 / 0
"""


def configured(folder: Path, agent: str, rest: str = "") -> Settings:
    """Return settings with this agent and one console, with a module of plugins beside them."""
    (folder / "own_plugins.py").write_text(PLUGINS)
    file = folder / "sayso.yaml"
    file.write_text(f"agent: {agent}\nchannels:\n  web: {{platform: console}}\n{rest}")
    return load_settings(file, {})


def config(folder: Path, agent: str) -> AgentConfig:
    """Return the configuration of the console's agent without a worker."""
    return AgentDeps.open(configured(folder, agent), folder).config_of("web")


def worker_config(folder: Path, agent: str, url: str) -> AgentConfig:
    """Return the configuration of the agent in a worker."""
    media = LocalMediaStore(folder / "media", keys=["k"], public_url="http://x")
    settings = configured(folder, agent)
    return AgentDeps.open(
        settings, folder, media=media, redis=RedisParts.connect(settings, url)
    ).config_of("web")


def refusal(folder: Path, agent: str) -> str:
    """Return the error of the start."""
    with pytest.raises(ConfigError) as caught:
        describe(configured(folder, agent))
    return str(caught.value).replace(str(folder), "")


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        ("{guards: {input: [{pattern: '('}]}}", ":1:26: agent.guards.input.0: missing ), unterminated subpattern"),
        ("{guards: {input: [{pattern: a*}]}}", "the pattern 'a*' is found in an empty text"),
        ("{guards: {output: [{topic: a, action: rewrite}]}}", "guards.output.0: a TopicGuardrail rewrites nothing"),
        ("{guards: {input: [{length: {}}]}}", "agent.guards.input.0.length: it lets every text through: give max, min"),
        ("{guards: {input: [{plugin: own_plugins}]}}", "'own_plugins': ValueError: write it as module:Class"),
        ("{observe: {plugin: 'own_plugins:NoShouting'}}", "TypeError: it is no AgentObserver"),
        ("{observe: {plugin: 'own_plugins:broken'}}", "ZeroDivisionError"),
        ("{observe: {plugin: 'no_such:Thing'}}", ":1:19: agent.observe.plugin.0: cannot make 'no_such:Thing': Module"),
    ],
)  # fmt: skip
def test_invalid_part_is_reported_before_the_start(tmp_path: Path, agent: str, said: str):
    """The error has its place."""
    assert said in refusal(tmp_path, agent)


def test_a_budget_in_dollars_without_a_price_is_warned_of(tmp_path: Path):
    """The warning names each model without a known price; a configured price counts."""
    agent = "{model: 'ollama:mine', budget: {day_usd: 5}"
    assert "the price of 'ollama:mine' is unknown, so no limit in USD holds" in str(
        describe(configured(tmp_path, f"{agent}}}"))
    )
    assert "warning" not in str(
        describe(configured(tmp_path, f"{agent}, prices: {{mine: [0.1, 0.2]}}}}"))
    )
    assert "warning" not in str(
        describe(configured(tmp_path, "{model: 'ollama:mine', budget: {day_tokens: 5}}"))
    )


def test_workers_share_a_budget_and_a_terminal_has_its_own(
    tmp_path: Path, redis_client: Redis, redis_url: str
):
    """Each process applies the limit of a run by itself."""
    agent = "{budget: {conversation_tokens: 9, run_tokens: 5, run_usd: 0.5}}"
    alone, shared = config(tmp_path, agent), worker_config(tmp_path, agent, redis_url)
    assert isinstance(alone.budget, MemoryBudget)
    assert isinstance(shared.budget, RedisBudget)
    assert (shared.max_total_tokens, shared.max_cost_usd) == (5, 0.5)
    assert config(tmp_path, "{budget: {run_tokens: 5}}").budget is None


def test_answers_are_cached_as_configured(tmp_path: Path, redis_client: Redis, redis_url: str):
    """The cache is in this process, in the bot's Redis or in another one; by default there is none."""
    assert config(tmp_path, "{}").cache is None
    assert isinstance(config(tmp_path, "{cache: true}").cache, InMemoryCache)
    assert isinstance(config(tmp_path, "{cache: {store: redis}}").cache, InMemoryCache)
    for where in ("", f", redis_url: '{redis_url}'"):
        kept = worker_config(tmp_path, f"{{cache: {{store: redis{where}}}}}", redis_url).cache
        assert isinstance(kept, RedisCache)
        assert kept.get("no such key") is None


def test_guards_are_in_the_written_order(tmp_path: Path):
    """Each has its action."""
    given = (
        "{guards: {input: [{length: {max: 9}}, {pattern: [x+], action: rewrite}, {injection: true, action: warn}, "
        "{plugin: 'own_plugins:NoShouting'}], output: [{topic: [court, law]}], loop: off}}"
    )
    made = config(tmp_path, given)
    assert made.guardrails
    assert [(each.name, each.action) for each in made.guardrails.input] == [
        ("length", GuardrailAction.BLOCK), ("pattern", GuardrailAction.REWRITE), ("injection", GuardrailAction.WARN),
        ("no_shouting", GuardrailAction.BLOCK),
    ]  # fmt: skip
    assert [
        asyncio.run(made.guardrails.acheck_output(text)).passed for text in ("hello", "the Law")
    ] == [True, False]
    assert made.loop_detector is None
    usual = config(tmp_path, "{}").loop_detector
    assert usual
    assert usual.max_repeats == 3


def test_memories_are_in_the_data_folder(tmp_path: Path):
    """The memory of a conversation is stored with its history."""
    memory = (
        "{summarize: {model: 'ollama:small'}, entities: true, relationships: true, knowledge: true}"
    )
    made = config(tmp_path, f"{{model: 'ollama:m', memory: {memory}}}")
    assert (made.summarize_on_trim, made.summarize_model) == (True, "small")
    assert made.entity_memory
    assert made.knowledge_graph
    store: Any = made.knowledge_graph.store
    assert made.knowledge_memory
    assert (store.path, made.knowledge_memory.directory) == (
        tmp_path / "relationships.db",
        tmp_path / "knowledge",
    )


def test_a_channel_may_name_the_tool_of_the_memory(tmp_path: Path):
    """Tools, roles and policy may name it; without that it runs at once."""
    roles = "{roles: {allowed: {a: [remember]}}}"
    web = (
        f"{{platform: console, tools: [remember], policy: {{allow: [find_*]}}, selector: {roles}}}"
    )
    settings = configured(tmp_path, "{memory: {knowledge: true}}", f"  own: {web}\n")
    assert str(describe(settings)).count("remember: runs at once") == 2
    told = explain(settings, load_bot_tools(settings), "own", "ana", "remember", {"content": "x"})
    assert told.decided_by
    assert told.decided_by.where == f"{tmp_path}/sayso.yaml:1:18"


def test_own_observers_get_the_events_of_runs(tmp_path: Path):
    """The log gets them too."""
    _, log, own = config(tmp_path, "{observe: {log: true, plugin: 'own_plugins:Watch'}}").observers
    assert isinstance(log, LoggingObserver)
    assert type(own).__name__ == "Watch"


def test_a_worker_waits_for_its_observers_at_its_exit(tmp_path: Path):
    """The last event of an async observer is not lost with the event loop."""
    heard = []

    class Slow(AsyncAgentObserver):
        async def a_on_run_end(self, run_id: str, result: AgentResult) -> None:
            await asyncio.sleep(0)
            heard.append(result.content)

    async def work() -> None:
        agent = Agent(provider=ScriptedProvider(["done"]), config=AgentConfig(observers=[Slow()]))
        await agent.arun("go")
        await AgentDeps.open(configured(tmp_path, "{model: offline}"), tmp_path).aclose()

    asyncio.run(work())
    assert heard == ["done"]


@pytest.mark.parametrize("is_worker", [True, False])
def test_only_a_worker_needs_a_model(
    tmp_path: Path, redis_url: str, is_worker: bool, monkeypatch: pytest.MonkeyPatch
):
    """The web answers no turn and needs neither key nor library."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    settings = configured(tmp_path, "{model: openai:gpt-5-mini}")
    if is_worker:
        with pytest.raises(ConfigError, match="openai needs a key"):
            bootstrap(settings, data=tmp_path, redis_url=redis_url, is_worker=True)
    else:
        assert bootstrap(settings, data=tmp_path, redis_url=redis_url).processor.turns.agents


def test_files_that_people_send_reach_the_model(
    tmp_path: Path, redis_client: Redis, redis_url: str
):
    """The provider reads them from the media store."""
    media = LocalMediaStore(tmp_path / "media", keys=["k"], public_url="http://x")
    file = media.put(b"\x89PNG\r\n\x1a\n", mime_type="image/png")
    settings = configured(tmp_path, "{model: 'ollama:m'}")
    redis = RedisParts.connect(settings, redis_url)
    made: Any = AgentDeps.open(settings, tmp_path, media=media, redis=redis).provider_of("web")
    assert made._load_media(file) == media.read(file.ref)


def test_a_channels_prompt_and_limits_reach_its_agent(tmp_path: Path):
    """They are the system prompt and the length of the history."""
    given = configured(tmp_path, "{memory: {max_messages: 7, max_tokens: 99}, tool_timeout: 3}")
    file = tmp_path / "sayso.yaml"
    file.write_text(
        file.read_text().replace("console}", "console, agent: {system_prompt: Be a pirate.}}")
    )
    with terminal_agent(load_settings(file, {}), data=tmp_path) as bot:
        memory = bot.agent.memory
        assert memory
        assert (memory.max_messages, memory.max_tokens) == (7, 99)
        assert (bot.agent.config.system_prompt, bot.agent.config.tool_timeout_seconds) == (
            "Be a pirate.",
            3,
        )
    assert given.agent_of("web").system_prompt != "Be a pirate."
