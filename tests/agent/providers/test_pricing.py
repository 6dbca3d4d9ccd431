"""Pricing: the cost of a model's answer, or None if its price is unknown."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys

import pytest

from sayso.agent import AgentConfig, UsageStats
from sayso.agent.providers import pricing
from sayso.agent.providers.pricing import context_tokens, cost_usd

USAGE = UsageStats(1_000_000, 100_000, 1_100_000)


def test_prices_are_not_fetched(monkeypatch):
    """The list is part of the installed library."""

    def refuse(*args, **kwargs):
        raise AssertionError("a price asked the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert cost_usd("gpt-5-mini", USAGE, "openai") is not None


@pytest.mark.parametrize(
    ("model", "provider"), [("never-heard-of", ""), ("gpt-5-mini", "ollama"), ("", "")]
)
def test_unknown_model_has_no_cost(model, provider):
    """A local model does not have the price of a vendor's model with the same name."""
    assert cost_usd(model, USAGE, provider) is None


def test_only_configured_prices_are_known_without_the_library(monkeypatch):
    """The library comes with an extra."""
    monkeypatch.setattr(pricing, "_library", lambda: None)
    assert cost_usd("gpt-5-mini", USAGE, "openai") is None
    assert cost_usd("gpt-5-mini", USAGE, prices={"gpt-5-mini": (1.0, 10.0)}) == pytest.approx(2.0)


def test_invalid_usage_has_no_cost(caplog):
    """More cached tokens than prompt tokens is a server's mistake, which ends no run."""
    with caplog.at_level(logging.WARNING):
        assert cost_usd("gpt-5-mini", UsageStats(10, 1, 11, cache_read_tokens=99), "openai") is None
    assert [record.message for record in caplog.records] == ["pricing.failed"]


def test_library_with_another_api_costs_the_context_window_only(monkeypatch, caplog):
    """A later version may have other functions. The run goes on."""
    monkeypatch.setattr(pricing, "_library", object)
    assert context_tokens("a model that no test asks for", "openai") is None
    assert [record.message for record in caplog.records] == ["pricing.failed"]


@pytest.mark.parametrize(
    ("model", "provider"),
    [
        ("gpt-5-mini", "openai"),
        ("claude-haiku-4-5", "anthropic"),
        ("gemini-2.5-flash", "gemini"),
        ("gpt-5-mini", ""),
    ],
)
def test_models_of_vendors_have_a_price(model, provider):
    """Completion tokens cost more than prompt tokens."""
    question, answer = (
        cost_usd(model, UsageStats(1000, 0, 1000), provider),
        cost_usd(model, UsageStats(0, 1000), provider),
    )
    assert 0 < question < answer


def test_cached_tokens_are_cheaper():
    """Vendors charge less for them."""
    cached = UsageStats(1_000_000, 100_000, 1_100_000, cache_read_tokens=900_000)
    assert cost_usd("gpt-5-mini", cached, "openai") < cost_usd("gpt-5-mini", USAGE, "openai")


@pytest.mark.parametrize(
    ("model", "provider", "read", "write"),
    [
        ("claude-haiku-4-5", "anthropic", 0.1, 1.25),
        ("gpt-5-mini", "openai", 0.1, 1.0),
        ("gpt-5.6", "openai", 0.1, 1.25),
        ("gemini-2.5-flash", "gemini", 0.1, 1.0),
    ],
)
def test_reading_and_writing_the_cache_costs_what_the_vendor_says(model, provider, read, write):
    """Anthropic and OpenAI's newer models charge more for writing."""
    usages = (UsageStats(100_000), UsageStats(100_000, cache_read_tokens=100_000))
    full, reading = (cost_usd(model, usage, provider) for usage in usages)
    writing = cost_usd(model, UsageStats(100_000, cache_write_tokens=100_000), provider)
    assert (reading / full, writing / full) == (pytest.approx(read), pytest.approx(write))


def test_configured_prices_count_cached_tokens_once():
    """At the full price, or at prices of their own."""
    usage = UsageStats(
        1_000_000, 0, 1_000_000, cache_read_tokens=600_000, cache_write_tokens=300_000
    )
    assert cost_usd("m", usage, prices={"m": (2.0, 9.0)}) == pytest.approx(2.0)
    assert cost_usd("m", usage, prices={"m": (2.0, 9.0, 0.2, 2.5)}) == pytest.approx(
        0.2 + 0.12 + 0.75
    )


def test_price_of_three_numbers_is_refused():
    """At once, and not by the first answer."""
    with pytest.raises(ValueError, match="give two numbers, or four"):
        AgentConfig(prices={"m": (1.0, 2.0, 3.0)})


def test_configured_prices_have_precedence():
    """They are for a million prompt tokens and a million completion tokens."""
    assert cost_usd(
        "gpt-5-mini", USAGE, "openai", prices={"gpt-5-mini": (0.0, 1.0)}
    ) == pytest.approx(0.1)
    assert cost_usd("mine", USAGE, "ollama", prices={"mine": (2.0, 0.0)}) == pytest.approx(2.0)


def test_price_list_is_loaded_at_first_use():
    """Importing the module does not load it, because that takes a tenth of a second."""
    code = "import sys, sayso.agent.providers.pricing; print('genai_prices' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
