"""Models: the YAML's words for a model become its provider, and what is missing is told before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sayso.agent import AnthropicProvider, FallbackProvider, OllamaProvider, OpenAIProvider
from sayso.agent.extras import install_command
from sayso.agent.providers.vendors import OPENAI_URL, VendorProvider
from sayso.agent.run.text_tools import TextToolProvider
from sayso.config.checks.describe import describe
from sayso.config.settings.agent import VENDORS
from sayso.config.settings.loader import ConfigError, load_settings
from sayso.config.settings.schema import Settings
from sayso.config.wiring.models import Models

KEY = "s3cr3t"


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of no vendor, whoever runs the tests."""
    for variable in filter(None, VENDORS.values()):
        monkeypatch.delenv(variable, raising=False)


def configured(folder: Path, agent: str, web: str = "") -> Settings:
    """Settings with this agent and one console."""
    file = folder / "sayso.yaml"
    file.write_text(f"agent: {agent}\nchannels:\n  web: {{platform: console, {web}}}\n")
    return load_settings(file, {"KEY": KEY})


def provider(folder: Path, agent: str, web: str = "") -> Any:
    """Who answers on the console."""
    return Models(configured(folder, agent, web)).of("web")


def refusal(folder: Path, agent: str, web: str = "") -> str:
    """Why nothing starts."""
    with pytest.raises(ConfigError) as caught:
        describe(configured(folder, agent, web))
    return str(caught.value).replace(str(folder), "")


@pytest.mark.parametrize("vendor", ["anthropic", "gemini"])
def test_a_vendors_own_key_is_sent_to_no_other_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vendor: str):
    """Whoever may edit the file could else read the keys of the environment."""
    monkeypatch.setenv(VENDORS[vendor], KEY)
    said = refusal(tmp_path, f"{{model: '{vendor}:m', base_url: 'http://elsewhere'}}")
    assert said.endswith(f"{VENDORS[vendor]} is sent to {vendor} only: write api_key: ${{{VENDORS[vendor]}}} as well")


def test_a_server_of_ones_own_is_sent_the_key_that_stands_beside_it_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Never OpenAI's."""
    monkeypatch.setenv("OPENAI_API_KEY", "openai's")
    alone = provider(tmp_path, "{model: openai:qwen, base_url: 'http://gpu/v1'}")
    assert (alone.name, alone._api_key, alone.base_url) == ("openai-compatible", "none", "http://gpu/v1")
    keyed = provider(tmp_path, "{model: openai:qwen, base_url: 'http://gpu/v1', api_key: '${KEY}'}")
    assert keyed._api_key == KEY


def test_another_vendor_on_a_channel_is_not_sent_the_agents_key(tmp_path: Path):
    """It is asked for one of its own; another model of the same vendor is reached as the agent's is."""
    agent = "{model: openai:gpt-5-mini, api_key: '${KEY}'}"
    assert "anthropic needs a key: export ANTHROPIC_API_KEY" in refusal(tmp_path, agent, "agent: {model: anthropic:m}")
    other = provider(tmp_path, agent, "agent: {model: openai:gpt-5-nano}")
    assert (other.default_model, other._api_key) == ("gpt-5-nano", KEY)


@pytest.mark.parametrize("vendor", ["openai", "anthropic", "gemini"])
def test_a_missing_key_is_told_with_its_line_and_cure(tmp_path: Path, vendor: str):
    """By `sayso check` as by a start."""
    cure = f"{vendor} needs a key: export {VENDORS[vendor]}=..., or write api_key: ${{NAME}}"
    assert refusal(tmp_path, f"{{model: '{vendor}:m'}}") == f"/sayso.yaml:1:9: agent.model: {cure}"
    fallback = f"{{model: ollama:m, fallback: [{{model: '{vendor}:m'}}]}}"
    assert refusal(tmp_path, fallback) == f"/sayso.yaml:1:37: agent.fallback.0: {cure}"


def test_a_missing_library_is_told_with_its_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Before the first question."""
    monkeypatch.setattr("sayso.agent.providers.vendors.is_installed", lambda name: name != "anthropic")
    said = refusal(tmp_path, "{model: anthropic:m, api_key: '${KEY}'}")
    assert said.endswith(f"agent.model: the library 'anthropic' is missing: {install_command('anthropic')}")


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
def test_what_needs_a_language_model_is_not_done_by_the_matcher(tmp_path: Path, part: str):
    """Its words would be kept as a summary; a model may be named for the task alone."""
    assert "'offline' is no language model" in refusal(tmp_path, f"{{{part}}}")
    own = "model: 'ollama:m'" if "results" in part else "{model: 'ollama:m'}"
    named = part.replace("compress: true", f"compress: true, {own}") if "results" in part else part.replace("true", own)
    assert "web (console)" in str(describe(configured(tmp_path, f"{{{named}}}")))


def test_the_words_for_a_model_become_its_provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The vendor's usual variable has the key, and the vendor's own address is asked."""
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
    frugal = provider(tmp_path, "{model: anthropic:m, api_key: '${KEY}', cache_prompt: false}")
    assert isinstance(frugal, AnthropicProvider)
    assert not frugal._vendor_settings()


def test_fallbacks_are_asked_in_their_order_and_in_words_where_tools_are_not_native(tmp_path: Path):
    """All of them, as one."""
    agent = (
        "{model: ollama:a, native_tools: false, fallback: [{model: ollama:b}, {model: openai:c, api_key: '${KEY}'}]}"
    )
    made = provider(tmp_path, agent)
    assert isinstance(made, TextToolProvider)
    assert isinstance(made.provider, FallbackProvider)
    assert [each.default_model for each in made.provider.providers] == ["a", "b", "c"]


def test_one_model_has_one_pool_of_connections(tmp_path: Path):
    """For all channels, and for what is done beside conversations; a preload imports each library once."""
    settings = configured(tmp_path, "{model: ollama:a, memory: {entities: {model: ollama:a}}}")
    models = Models(settings)
    assert models.of("web") is models.of("web")
    assert settings.agent.memory.entities
    assert models.beside(settings.agent.memory.entities, "web", "memory", "entities") == (models.of("web"), "a")
    models.preload()
    answering = models.of("web")
    assert isinstance(answering, VendorProvider)
    assert answering._preloaded
