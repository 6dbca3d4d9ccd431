"""AgentUsage and AgentAnalytics: the tokens, costs and calls of an agent, in bounded memory."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import pytest

from sayso.agent import Agent, AgentConfig, Message, Role, ToolCall, UsageStats, tool
from sayso.agent.messages import NO_USAGE, countable
from sayso.agent.observability import usage
from sayso.agent.observability.usage import AgentAnalytics, AgentUsage, ToolMetrics

QUESTION = UsageStats(100, 20, 120, 0.01, "m", "p")


def test_concurrent_threads_lose_no_count():
    """Runs in several threads share one agent."""
    spent, counted = AgentUsage(), AgentAnalytics()

    def work(_):
        spent.add_usage(QUESTION, "search")
        counted.record_tool_call("search", success=True, duration=0.5)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(2000)))
    assert (spent.total_tokens, spent.tool_usage) == (240_000, {"search": 2000})
    assert counted.get_metrics("search").total_calls == 2000


def test_statistics_are_bounded(monkeypatch):
    """Invented tool names do not fill the memory, and the totals stay correct."""
    monkeypatch.setattr(usage, "MAX_TOOLS", 3)
    spent, counted = AgentUsage(), AgentAnalytics()
    for number in range(50):
        spent.add_usage(QUESTION, f"tool_{number}")
        counted.record_tool_call(f"tool_{number}", success=True, duration=0.0)
    assert spent.total.prompt_tokens == 5000
    assert spent.tool_usage["(other)"] == counted.get_metrics("(other)").total_calls == 47


def test_parameters_are_not_stored():
    """They are private, so only their presence is counted."""
    counted = AgentAnalytics()
    counted.record_tool_call("send", True, 0.1, {"to": "s3cret"})
    assert "s3cret" not in repr(counted.get_all_metrics())
    assert counted.get_metrics("send").calls_with_parameters == 1


def test_usage_is_summed():
    """The totals cover tokens, dollars and tools."""
    spent = AgentUsage()
    spent.add_usage(QUESTION)
    spent.add_usage(QUESTION, tool_name="search")
    assert (spent.total_cost_usd, spent.total_tokens) == (pytest.approx(0.02), 240)
    assert (spent.total.prompt_tokens, spent.total.completion_tokens) == (200, 40)
    assert spent.tool_usage == {"search": 1}


def test_adding_zero_usage_changes_nothing():
    """It holds on either side of the sum and for both notations of zero."""
    assert NO_USAGE + QUESTION == QUESTION + NO_USAGE == QUESTION
    assert UsageStats() + QUESTION == QUESTION + UsageStats() == QUESTION


def test_usage_has_a_readable_summary():
    """`get_usage_summary` returns it."""
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


def test_metrics_of_a_tool():
    """They have rates, durations in seconds and chunks."""
    counted = AgentAnalytics()
    counted.record_tool_call("search", True, 0.5, {}, chunk_count=3)
    counted.record_tool_call("search", False, 1.5)
    found = counted.get_metrics("search")
    assert (found.total_calls, found.successful_calls, found.failed_calls) == (2, 1, 1)
    assert (found.success_rate, found.avg_duration, found.longest_duration) == (0.5, 1.0, 1.5)
    assert found.total_chunks == 3


def test_uncalled_tool_has_no_metrics():
    """No rate divides by zero."""
    assert AgentAnalytics().get_metrics("search") is None
    assert ToolMetrics("search").success_rate == ToolMetrics("search").avg_duration == 0.0
    assert AgentAnalytics().summary() == "No tool was called."


def test_summary_starts_with_the_most_used_tool():
    """It has a line for each tool."""
    counted = AgentAnalytics()
    for name in ("add", "search", "search"):
        counted.record_tool_call(name, True, 0.25)
    assert counted.summary().splitlines() == [
        "search: 2 calls, 100% succeeded, 0.250 s each",
        "add: 1 calls, 100% succeeded, 0.250 s each",
    ]


@pytest.mark.parametrize(("successes", "failures", "percent"), [(1999, 1, "99%"), (1, 1999, "1%")])
def test_summary_hides_no_rare_failure_or_success(successes, failures, percent):
    """Rounding would make all or nothing of them."""
    counted = AgentAnalytics()
    for number in range(successes + failures):
        counted.record_tool_call("search", number < successes, 0.25)
    assert counted.summary() == f"search: 2000 calls, {percent} succeeded, 0.250 s each"


def test_reset_clears_the_analytics():
    """No tool is left."""
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
def test_invalid_numbers_count_as_zero(told, counted):
    """NaN, negative and huge numbers become zero, and a total is never less than its parts."""
    assert countable(told) == counted


def test_invalid_cost_does_not_disable_the_limit_of_a_run():
    """A sum with NaN would be NaN and never reach a limit."""
    calls = [ToolCall("step", {"number": number}, str(number)) for number in range(6)]

    class Strange:
        async def acomplete(self, **request):
            call = calls.pop(0)
            return Message(Role.ASSISTANT, tool_calls=(call,)), UsageStats(
                1, 1, 2, 5.0 if len(calls) < 5 else math.nan
            )

    @tool
    def step(number: int) -> str:
        """Return the number."""
        return str(number)

    agent = Agent([step], Strange(), AgentConfig(max_cost_usd=1.0))
    result = agent.run("go")
    assert (result.stop_reason, result.usage.cost_usd, agent.total_cost) == ("budget", 5.0, 5.0)
