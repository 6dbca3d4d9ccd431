"""Models: the YAML's model becomes a provider, and a missing part is reported before the start."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from sayso.agent import FallbackProvider, OfflineProvider, OllamaProvider, OpenAIProvider
from sayso.agent.extras import missing_library
from sayso.agent.providers.base import ProviderRequest
from sayso.agent.providers.testing import ScriptedProvider
from sayso.agent.providers.vendors import OPENAI_URL, VendorProvider
from sayso.agent.run.text_tools import TextToolProvider
from sayso.config.settings.agent import VENDORS
from sayso.config.settings.loader import ConfigError, load_settings
from sayso.config.settings.schema import Settings
from sayso.config.wiring.agents import channel_after
from sayso.config.wiring.models import Models
from sayso.ops.checks.describe import describe

KEY = "s3cr3t"


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove all vendors' keys from the environment."""
    for variable in filter(None, VENDORS.values()):
        monkeypatch.delenv(variable, raising=False)


def configured(folder: Path, agent: str, web: str = "") -> Settings:
    """Return settings with this agent and one console."""
    file = folder / "sayso.yaml"
    file.write_text(f"agent: {agent}\nchannels:\n  web: {{platform: console, {web}}}\n")
    return load_settings(file, {"KEY": KEY})


def provider(folder: Path, agent: str, web: str = "") -> Any:
    """Return the provider of the console's agent."""
    return Models(configured(folder, agent, web)).of("web")


def refusal(folder: Path, agent: str, web: str = "") -> str:
    """Return the error of the start."""
    with pytest.raises(ConfigError) as caught:
        describe(configured(folder, agent, web))
    return str(caught.value).replace(str(folder), "")


@pytest.mark.parametrize("vendor", ["anthropic", "gemini"])
def test_a_vendors_key_is_not_sent_to_another_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vendor: str
):
    """Otherwise a person who can edit the file could read the keys of the environment."""
    monkeypatch.setenv(VENDORS[vendor], KEY)
    said = refusal(tmp_path, f"{{model: '{vendor}:m', base_url: 'http://elsewhere'}}")
    assert said.endswith(
        f"{VENDORS[vendor]} is sent to {vendor} only: write api_key: ${{{VENDORS[vendor]}}} as well"
    )


def test_own_server_gets_only_its_configured_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It never gets OpenAI's key."""
    monkeypatch.setenv("OPENAI_API_KEY", "openai's")
    alone = provider(tmp_path, "{model: openai:qwen, base_url: 'http://gpu/v1'}")
    assert (alone.name, alone._api_key, alone.base_url) == (
        "openai-compatible",
        "none",
        "http://gpu/v1",
    )
    keyed = provider(tmp_path, "{model: openai:qwen, base_url: 'http://gpu/v1', api_key: '${KEY}'}")
    assert keyed._api_key == KEY


def test_another_vendor_on_a_channel_does_not_get_the_agents_key(tmp_path: Path):
    """It needs a key of its own; another model of the same vendor uses the agent's."""
    agent = "{model: openai:gpt-5-mini, api_key: '${KEY}'}"
    assert "anthropic needs a key: export ANTHROPIC_API_KEY" in refusal(
        tmp_path, agent, "agent: {model: anthropic:m}"
    )
    other = provider(tmp_path, agent, "agent: {model: openai:gpt-5-nano}")
    assert (other.default_model, other._api_key) == ("gpt-5-nano", KEY)


@pytest.mark.parametrize("vendor", ["openai", "anthropic", "gemini"])
def test_a_missing_key_is_reported_with_its_line_and_cure(tmp_path: Path, vendor: str):
    """Both `sayso check` and a start report it."""
    cure = f"{vendor} needs a key: export {VENDORS[vendor]}=..., or write api_key: ${{NAME}}"
    assert refusal(tmp_path, f"{{model: '{vendor}:m'}}") == f"/sayso.yaml:1:9: agent.model: {cure}"
    fallback = f"{{model: ollama:m, fallback: [{{model: '{vendor}:m'}}]}}"
    assert refusal(tmp_path, fallback) == f"/sayso.yaml:1:37: agent.fallback.0: {cure}"


def test_a_missing_library_is_reported_with_its_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It is reported before the first model call."""
    monkeypatch.setitem(sys.modules, "anthropic", None)
    said = refusal(tmp_path, "{model: anthropic:m, api_key: '${KEY}'}")
    assert said.endswith(f"agent.model: {missing_library('anthropic', 'anthropic')}")


@pytest.mark.parametrize(
    "part",
    [
        "memory: {summarize: true}",
        "memory: {entities: true}",
        "memory: {relationships: true}",
        "results: {compress: true}",
        "guards: {coherence: true}",
    ],
)
def test_offline_model_does_not_write_summaries(tmp_path: Path, part: str):
    """Its text would be stored as a summary. Another model can be named for this task alone."""
    assert "'offline' is no language model" in refusal(tmp_path, f"{{{part}}}")
    own = "model: 'ollama:m'" if "results" in part else "{model: 'ollama:m'}"
    named = (
        part.replace("compress: true", f"compress: true, {own}")
        if "results" in part
        else part.replace("true", own)
    )
    assert "web (console)" in str(describe(configured(tmp_path, f"{{{named}}}")))


def test_name_of_a_model_becomes_its_provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The vendor's usual variable has the key, and the vendor's own URL is called."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    plain = provider(tmp_path, "{model: openai:gpt-5-mini}")
    assert isinstance(plain, OpenAIProvider)
    assert (plain.name, plain.default_model, plain._api_key, plain.base_url) == (
        "openai",
        "gpt-5-mini",
        KEY,
        OPENAI_URL,
    )
    local = provider(tmp_path, "{model: 'ollama:llama3.2:1b', base_url: 'http://gpu:11434/v1'}")
    assert isinstance(local, OllamaProvider)
    assert (local.default_model, local.base_url) == ("llama3.2:1b", "http://gpu:11434/v1")


@pytest.mark.parametrize(
    ("agent", "is_cached"),
    [
        ("{model: anthropic:m, api_key: '${KEY}'}", True),
        ("{model: anthropic:m, api_key: '${KEY}', cache_prompt: false}", False),
        ("{model: gemini:m, api_key: '${KEY}', cache_prompt: explicit}", True),
        ("{model: openai:m, api_key: '${KEY}'}", True),
        ("{model: openai:m, base_url: 'http://gpu:8000/v1'}", False),
        ("{model: openai:m, base_url: 'http://gpu:8000/v1', prompt_cache_key: true}", True),
        ("{model: openai-responses:m, api_key: '${KEY}', prompt_cache_key: false}", False),
    ],
)
def test_requests_ask_for_a_cache_as_configured(tmp_path: Path, agent: str, *, is_cached: bool):
    """Of another server with OpenAI's API only where the operator says so."""
    made = provider(tmp_path, agent)
    assert isinstance(made, VendorProvider)
    assert made.asks_to_cache == is_cached
    request = ProviderRequest("m", "", (), conversation_key="k")
    assert bool(made.asks_to_cache and made.cache_settings(request)) == is_cached


def test_key_of_a_conversation_is_for_the_api_of_openai(tmp_path: Path):
    """An option that does nothing is refused."""
    wrong = "{model: anthropic:m, api_key: '${KEY}', prompt_cache_key: true}"
    assert "prompt_cache_key is a field of OpenAI's API: leave it out" in refusal(tmp_path, wrong)


@pytest.mark.parametrize(
    ("agent", "web"),
    [
        ("{model: openai:m, api_key: '${KEY}'}", "agent: {model: openai:n, prompt_cache_key: false}"),
        ("{model: openai:m, api_key: '${KEY}', fallback: [{model: openai:n, prompt_cache_key: false}]}", ""),
    ],
)  # fmt: skip
def test_cache_key_of_a_section_counts_although_it_takes_the_agents_key(
    tmp_path: Path, agent: str, web: str
):
    """A channel and a fallback without an `api_key` have a `prompt_cache_key` of their own."""
    made = dict(Models(configured(tmp_path, agent, web)).chain("web"))["openai:n"]
    assert isinstance(made, VendorProvider)
    assert not made.asks_to_cache


def test_fallbacks_are_called_in_order_and_with_text_tools_where_needed(tmp_path: Path):
    """They act as one provider."""
    agent = "{model: ollama:a, native_tools: false, fallback: [{model: ollama:b}, {model: openai:c, api_key: '${KEY}'}]}"
    made = provider(tmp_path, agent)
    assert isinstance(made, TextToolProvider)
    assert isinstance(made.provider, FallbackProvider)
    assert [each.default_model for each in made.provider.providers] == ["a", "b", "c"]


def test_one_model_has_one_pool_of_connections(tmp_path: Path):
    """All channels and background tasks share it, and a preload imports each library once."""
    settings = configured(tmp_path, "{model: ollama:a, memory: {entities: {model: ollama:a}}}")
    models = Models(settings)
    assert models.of("web") is models.of("web")
    assert settings.agent.memory.entities
    assert models.for_side_task(settings.agent.memory.entities, "web", "memory", "entities") == (
        models.of("web"),
        "a",
    )
    models.preload()
    answering = models.of("web")
    assert isinstance(answering, VendorProvider)
    assert answering._is_preloaded


@pytest.mark.parametrize(
    ("agent", "web", "after"),
    [
        ("{}", "", "say"),
        ("{fallback: [{model: ollama:m}]}", "", "say"),
        ("{model: ollama:m}", "", "continue"),
        ("{}", "agent: {model: ollama:m}", "continue"),
        ("{model: ollama:m}", "after: say", "say"),
        ("{}", "after: continue", "continue"),
    ],
)
def test_a_real_model_goes_on_after_an_outcome_unless_the_channel_says_otherwise(
    tmp_path: Path, agent: str, web: str, after: str
):
    """The offline one reads commands, so it has nothing to go on with; it asks no fallback."""
    assert channel_after(configured(tmp_path, agent, web), "web") == after


def test_scripted_provider_goes_on_like_a_real_model(tmp_path: Path):
    """It stands in the place of one. The offline one stays what it is."""
    settings = configured(tmp_path, "{}")
    assert channel_after(settings, "web", ScriptedProvider([])) == "continue"
    assert channel_after(settings, "web", OfflineProvider()) == "say"


def test_check_names_the_tools_after_which_something_else_follows(tmp_path: Path):
    """Of those that ask. A pattern that names no tool is a warning."""
    (tmp_path / "tools.py").write_text(
        "from sayso.agent import tool\n"
        "@tool(requires_approval=True)\ndef refund():\n    'Refund.'\n"
        "@tool(requires_approval=True)\ndef pay():\n    'Pay.'\n"
        "@tool\ndef find():\n    'Find.'\n"
    )
    policy = "policy: {allow: ['*'], after: {refund: continue, find: continue, wipe: say}}"
    settings = configured(tmp_path, "{}\ntools: [./tools.py]", policy)
    lines = str(describe(settings)).splitlines()
    assert lines[3:7] == [
        "  after an outcome: the bot's own text is all",
        "  refund: asks first, then the model goes on",
        "  pay: asks first",
        "  find: runs at once",
    ]
    assert lines[7].endswith("warning: channels.web.policy.after.wipe: 'wipe' names no tool")


def test_check_says_where_a_question_stays_open(tmp_path: Path):
    """The default is not mentioned."""
    said = "  another message: is answered, and the open question stays"
    assert said in str(describe(configured(tmp_path, "{}", "other_message: keep"))).splitlines()
    assert said not in str(describe(configured(tmp_path, "{}"))).splitlines()
