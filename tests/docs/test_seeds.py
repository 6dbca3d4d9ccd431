"""The seeds: what each documents (seeds.toml, and seed_agent.toml for the agent), and the test that proves it here."""

from __future__ import annotations

import ast
import tomllib
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

from sayso import agent, pending
from sayso.agent.observability.builtin import HOOKS
from sayso.agent.observability.observer import EVENTS
from sayso.agent.trace import StepType
from tests.agent.seeds.test_agent_seed import DEFAULTS, UNTOLD

ROOT = Path(__file__).parents[2]

FILES = ("seeds.toml", "seed_agent.toml")
SEEDS = {
    seed: items
    for file in FILES
    for seed, items in tomllib.loads((Path(__file__).parent / file).read_text()).items()
}

#: The public names the seeds give, all of them in `agent`.
NAMES = (
    "Agent",
    "AgentAnalytics",
    "AgentConfig",
    "AgentObserver",
    "AgentResult",
    "AgentTrace",
    "AgentUsage",
    "Ambiguous",
    "AnthropicProvider",
    "Artifact",
    "AsyncAgentObserver",
    "Cache",
    "CacheKeyBuilder",
    "CacheStats",
    "ChannelAgent",
    "ConfirmAction",
    "ConversationMemory",
    "EmbeddingSelector",
    "EntityMemory",
    "FallbackProvider",
    "GeminiProvider",
    "InMemoryCache",
    "JsonFileSessionStore",
    "KeywordSelector",
    "KnowledgeGraphMemory",
    "KnowledgeMemory",
    "LocalProvider",
    "LoggingObserver",
    "Message",
    "MockToolProvider",
    "NotFound",
    "OllamaProvider",
    "OpenAIProvider",
    "PendingConfirmation",
    "PolicyDecision",
    "PromptBuilder",
    "Provider",
    "ProviderConfigurationError",
    "ProviderError",
    "RedisCache",
    "RedisSessionStore",
    "ResponseFormat",
    "Role",
    "RoleBasedSelector",
    "SQLiteSessionStore",
    "SessionStore",
    "StreamChunk",
    "Tool",
    "ToolCall",
    "ToolCallParser",
    "ToolError",
    "ToolExecutionError",
    "ToolLoader",
    "ToolMetadata",
    "ToolNotFoundError",
    "ToolOutcome",
    "ToolParameter",
    "ToolParameterError",
    "ToolPolicy",
    "ToolProviderProtocol",
    "ToolRegistry",
    "ToolResult",
    "ToolSelector",
    "ToolTag",
    "ToolValidationError",
    "TraceStep",
    "UsageStats",
    "build_schema_instruction",
    "discover_selectors",
    "emit_artifact",
    "extract_json",
    "parse_and_validate",
    "schema_from_response_format",
    "tool",
    "validation_retry_message",
)

#: Those of `selectools.pending`, which are in `pending`. Its ChannelAgent is in `agent`, as what knows both rooms.
PENDING = (
    "DEFAULT_IGNORE_TTL_SECONDS",
    "ConfirmParser",
    "InMemoryPendingStore",
    "PendingAction",
    "PendingConfirmation",
    "RedisPendingStore",
    "RegexConfirmParser",
    "stash_pending",
)

#: What the pages import, by the module they import it from. Names without a counterpart have a row of their own.
IMPORTED = {
    "selectools": (
        *(
            "Agent",
            "AgentConfig",
            "AgentObserver",
            "Ambiguous",
            "AnthropicProvider",
            "AsyncAgentObserver",
        ),
        *(
            "CacheKeyBuilder",
            "EntityMemory",
            "FallbackProvider",
            "InMemoryCache",
            "KnowledgeGraphMemory",
        ),
        *(
            "KnowledgeMemory",
            "LoggingObserver",
            "NotFound",
            "OpenAIProvider",
            "ResponseFormat",
            "Tool",
        ),
        *("ToolParameter", "ToolPolicy", "ToolRegistry", "ToolResult", "emit_artifact", "tool"),
    ),
    "selectools.agent.config_groups": ("ToolConfig",),
    "selectools.cache_redis": ("RedisCache",),
    "selectools.pending": (
        "ChannelAgent",
        "InMemoryPendingStore",
        "PendingConfirmation",
        "stash_pending",
    ),
    "selectools.providers.stubs": ("LocalProvider",),
    "selectools.sessions": ("JsonFileSessionStore",),
    "selectools.structured": (
        *(
            "build_schema_instruction",
            "extract_json",
            "parse_and_validate",
            "schema_from_response_format",
        ),
        "validation_retry_message",
    ),
    "selectools.tools": ("tool",),
    "toolregistry": ("Tool", "ToolRegistry"),
    "xaibo.core.models.tools": ("Tool", "ToolParameter", "ToolResult"),
    "xaibo.core.protocols.tools": ("ToolProviderProtocol",),
    "axio": ("Agent", "Tool"),
    "axio.messages": ("Message",),
}

#: What a function calls that asserts by itself.
ASSERTING = {"raises", "warns"}


def asserts(name: str, functions: dict[str, ast.AST]) -> bool:
    """Whether a function of a file asserts anything, by itself or in one of the file's own that it calls."""
    nodes = list(ast.walk(functions[name]))
    called = {
        getattr(each.func, "attr", getattr(each.func, "id", ""))
        for each in nodes
        if isinstance(each, ast.Call)
    }
    others = {each: node for each, node in functions.items() if each != name}
    return (
        any(isinstance(each, ast.Assert) for each in nodes)
        or not called.isdisjoint(ASSERTING)
        or any(asserts(each, others) for each in called & others.keys())
    )


@cache
def functions_of(file: str) -> dict[str, ast.AST]:
    """Return the functions of a test file by name."""
    tree = ast.parse((ROOT / "tests" / file).read_text())
    return {
        each.name: each
        for each in ast.walk(tree)
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
    }


@pytest.mark.parametrize(
    "item", [(seed, item) for seed, items in SEEDS.items() for item in items], ids=": ".join
)
def test_what_a_seed_documents_has_a_test(item):
    """It exists, under that name, and asserts something; a renamed test takes its line along."""
    seed, what = item
    file, _, name = SEEDS[seed][what].partition("::")
    functions = functions_of(file)
    assert name in functions
    assert asserts(name, functions)


def test_every_name_of_the_seeds_is_exported():
    """From `agent`, and from `pending` what the seed has in its room of that name."""
    assert [name for name in NAMES if name not in agent.__all__] == []
    assert [name for name in PENDING if name not in pending.__all__] == []


@pytest.mark.parametrize("module", IMPORTED)
def test_names_that_the_pages_import_are_where_the_row_import_names_says(module):
    """`sayso.pending` for `selectools.pending` without ChannelAgent, else `sayso.agent`."""
    pages_of_pending = module == "selectools.pending"
    for name in IMPORTED[module]:
        package = pending if pages_of_pending and name != "ChannelAgent" else agent
        assert name in package.__all__
        assert hasattr(package, name)


def test_no_event_hook_step_or_setting_of_the_agents_seed_is_left_out():
    """Each has an item, with its parameters or its default."""
    items = "\n".join(SEEDS["selectools_agent"])
    documented = [
        *(f"on_{event}(" for event in EVENTS),
        *(f"hook {name}({', '.join(sources)})" for name, (_, sources) in HOOKS.items()),
        *(f"TraceStep {kind}\n" for kind in get_args(StepType)[:14]),
        *(f"AgentConfig.{name}" for name in (*DEFAULTS, *UNTOLD)),
    ]
    assert [each for each in documented if each not in items] == []
