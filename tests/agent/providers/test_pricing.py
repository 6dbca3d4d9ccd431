"""Pricing: what a model cost, or that nobody knows."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys

import pytest

from sayso.agent import UsageStats
from sayso.agent.providers import pricing
from sayso.agent.providers.pricing import cost_usd

USAGE = UsageStats(1_000_000, 100_000, 1_100_000)


def test_no_price_is_fetched(monkeypatch):
    """The list comes with the library: it is as old as what is installed."""

    def refuse(*args, **kwargs):
        raise AssertionError("a price asked the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert cost_usd("gpt-5-mini", USAGE, "openai") is not None


@pytest.mark.parametrize(("model", "provider"), [("never-heard-of", ""), ("gpt-5-mini", "ollama"), ("", "")])
def test_what_nobody_knows_costs_none(model, provider):
    """A local model has not the price of its namesake."""
    assert cost_usd(model, USAGE, provider) is None


def test_without_the_library_only_own_prices_are_known(monkeypatch):
    """It comes with an extra."""
    monkeypatch.setattr(pricing, "_library", lambda: None)
    assert cost_usd("gpt-5-mini", USAGE, "openai") is None
    assert cost_usd("gpt-5-mini", USAGE, prices={"gpt-5-mini": (1.0, 10.0)}) == pytest.approx(2.0)


def test_usage_that_makes_no_sense_costs_none(caplog):
    """More of the cache than was asked: somebody's server miscounts, and no run ends for it."""
    with caplog.at_level(logging.WARNING):
        assert cost_usd("gpt-5-mini", UsageStats(10, 1, 11, cache_read_tokens=99), "openai") is None
    assert [record.message for record in caplog.records] == ["pricing.failed"]


@pytest.mark.parametrize(
    ("model", "provider"),
    [("gpt-5-mini", "openai"), ("claude-haiku-4-5", "anthropic"), ("gemini-2.5-flash", "gemini"), ("gpt-5-mini", "")],
)
def test_vendors_models_have_a_price(model, provider):
    """An answer costs more than a question."""
    question, answer = (
        cost_usd(model, UsageStats(1000, 0, 1000), provider),
        cost_usd(model, UsageStats(0, 1000), provider),
    )
    assert 0 < question < answer


def test_what_the_prompt_cache_gave_is_cheaper():
    """As vendors charge it."""
    cached = UsageStats(1_000_000, 100_000, 1_100_000, cache_read_tokens=900_000)
    assert cost_usd("gpt-5-mini", cached, "openai") < cost_usd("gpt-5-mini", USAGE, "openai")


def test_own_prices_come_first():
    """For a million tokens of questions, and of answers."""
    assert cost_usd("gpt-5-mini", USAGE, "openai", prices={"gpt-5-mini": (0.0, 1.0)}) == pytest.approx(0.1)
    assert cost_usd("mine", USAGE, "ollama", prices={"mine": (2.0, 0.0)}) == pytest.approx(2.0)


def test_the_list_is_loaded_when_a_price_is_asked_for():
    """Not by whoever only imports the module: it takes a tenth of a second."""
    code = "import sys, sayso.agent.providers.pricing; print('genai_prices' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
