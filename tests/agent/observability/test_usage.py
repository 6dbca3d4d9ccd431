"""AgentUsage and AgentAnalytics: what an agent has spent and called, in bounded room."""

from __future__ import annotations

import csv
import json
import math
from concurrent.futures import ThreadPoolExecutor

import pytest

from sayso.agent import Agent, AgentConfig, Message, Role, ToolCall, UsageStats, tool
from sayso.agent.messages import NO_USAGE, countable
from sayso.agent.observability import usage
from sayso.agent.observability.usage import AgentAnalytics, AgentUsage, ToolMetrics

QUESTION = UsageStats(100, 20, 120, 0.01, "m", "p")


def test_threads_lose_no_count():
    """Many runs of one agent add at once."""
    spent, counted = AgentUsage(), AgentAnalytics()

    def work(_):
        spent.add_usage(QUESTION, "search")
        counted.record_tool_call("search", success=True, duration=0.5)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(2000)))
    assert (spent.total_tokens, spent.tool_usage) == (240_000, {"search": 2000})
    assert counted.get_metrics("search").total_calls == 2000


def test_a_long_lived_agent_does_not_grow(monkeypatch):
    """Neither by questions nor by names that a model thinks of; the totals stay right."""
    monkeypatch.setattr(usage, "MAX_TOOLS", 3)
    spent, counted = AgentUsage(max_iterations=5), AgentAnalytics()
    for number in range(50):
        spent.add_usage(QUESTION, f"tool_{number}")
        counted.record_tool_call(f"tool_{number}", success=True, duration=0.0)
    assert len(spent.iterations) == 5
    assert spent.total_prompt_tokens == 5000
    assert spent.tool_usage["(other)"] == counted.get_metrics("(other)").total_calls == 47


def test_parameters_are_not_kept(tmp_path):
    """They are somebody's: only that there were some is counted."""
    counted = AgentAnalytics()
    counted.record_tool_call("send", True, 0.1, {"to": "s3cret"})
    counted.to_json(tmp_path / "a.json")
    assert "s3cret" not in (tmp_path / "a.json").read_text()
    assert counted.get_metrics("send").calls_with_parameters == 1


def test_usage_adds_up():
    """Tokens, dollars, tools."""
    spent = AgentUsage()
    spent.add_usage(QUESTION)
    spent.add_usage(QUESTION, tool_name="search")
    assert spent.total_cost_usd == pytest.approx(0.02)
    assert (spent.total_prompt_tokens, spent.total_completion_tokens, spent.total_tokens) == (200, 40, 240)
    assert spent.iterations == [QUESTION, QUESTION]
    assert spent.to_dict() == {
        "total_prompt_tokens": 200,
        "total_completion_tokens": 40,
        "total_tokens": 240,
        "total_cost_usd": 0.02,
        "iterations": 2,
        "tool_usage": {"search": 1},
    }


def test_nothing_used_changes_no_sum():
    """Whichever side of the sum it is on, and however it is written."""
    assert NO_USAGE + QUESTION == QUESTION + NO_USAGE == QUESTION
    assert UsageStats() + QUESTION == QUESTION + UsageStats() == QUESTION


def test_usage_is_readable():
    """As `get_usage_summary` gives it."""
    spent = AgentUsage()
    spent.add_usage(UsageStats(1000, 200, 1200, 0.0125), "search")
    assert str(spent).splitlines() == [
        "Tokens: 1,200 (1,000 prompt, 200 completion)",
        "Cost: $0.012500",
        "Model calls: 1",
        "Tools:",
        "  search: 1",
    ]
    assert "Tools" not in str(AgentUsage())


def test_a_tools_figures():
    """Rates, durations in seconds, chunks."""
    counted = AgentAnalytics()
    counted.record_tool_call("search", True, 0.5, {}, chunk_count=3)
    counted.record_tool_call("search", False, 1.5)
    found = counted.get_metrics("search")
    assert (found.total_calls, found.successful_calls, found.failed_calls) == (2, 1, 1)
    assert (found.success_rate, found.failure_rate, found.avg_duration, found.longest_duration) == (0.5, 0.5, 1.0, 1.5)
    assert found.total_chunks == 3


def test_a_tool_that_was_never_called_has_no_figures():
    """And divides nothing by nothing."""
    assert AgentAnalytics().get_metrics("search") is None
    assert ToolMetrics("search").success_rate == ToolMetrics("search").avg_duration == 0.0
    assert AgentAnalytics().summary() == "No tool was called."


def test_the_summary_begins_with_the_busiest_tool():
    """A line each."""
    counted = AgentAnalytics()
    for name in ("add", "search", "search"):
        counted.record_tool_call(name, True, 0.25)
    assert counted.summary().splitlines() == [
        "search: 2 calls, 100% succeeded, 0.250 s each",
        "add: 1 calls, 100% succeeded, 0.250 s each",
    ]


def test_figures_are_written_as_json_and_csv(tmp_path):
    """The same in both."""
    counted = AgentAnalytics()
    counted.record_tool_call("search", True, 0.5)
    counted.to_json(tmp_path / "a.json")
    counted.to_csv(tmp_path / "a.csv")
    with (tmp_path / "a.csv").open() as file:
        (row,) = csv.DictReader(file)
    data = json.loads((tmp_path / "a.json").read_text())
    assert data == counted.to_dict()
    assert row == {name: str(value) for name, value in data["search"].items()}


def test_reset_counts_from_nothing():
    """All tools are gone."""
    counted = AgentAnalytics()
    counted.record_tool_call("search", True, 0.5)
    counted.reset()
    assert counted.get_all_metrics() == {}


@pytest.mark.parametrize(
    ("told", "counted"),
    [
        (UsageStats(1, 2, 3, float("nan")), UsageStats(1, 2, 3, 0.0)),
        (UsageStats(1, 2, 3, float("inf")), UsageStats(1, 2, 3, 0.0)),
        (UsageStats(1, 2, 3, 10**400), UsageStats(1, 2, 3, 0.0)),
        (UsageStats(10**400, 2, 10**400), UsageStats(0, 2, 2)),
        (UsageStats(-5, 2, -3, -1.0), UsageStats(0, 2, 2, 0.0)),
        (UsageStats(5, 2), UsageStats(5, 2, 7)),
        (UsageStats(5, 2, 9, 0.5, "m", "p", 3, -1), UsageStats(5, 2, 9, 0.5, "m", "p", 3, 0)),
    ],
)
def test_strange_numbers_spoil_no_sum(told, counted):
    """What is no number, below nothing or beyond measure is nothing, and a total is never less than its parts."""
    assert countable(told) == counted


def test_a_cost_that_is_no_number_does_not_lift_the_limit_of_a_run():
    """The sum with it would be none either, and no limit is ever reached by that."""
    calls = [ToolCall("step", {"number": number}, str(number)) for number in range(6)]

    class Strange:
        async def acomplete(self, **request):
            call = calls.pop(0)
            return Message(Role.ASSISTANT, tool_calls=(call,)), UsageStats(1, 1, 2, 5.0 if len(calls) < 5 else math.nan)

    @tool
    def step(number: int) -> str:
        """Go on."""
        return str(number)

    agent = Agent([step], Strange(), AgentConfig(max_cost_usd=1.0))
    result = agent.run("go")
    assert (result.stop_reason, result.usage.cost_usd, agent.total_cost) == ("budget", 5.0, 5.0)
