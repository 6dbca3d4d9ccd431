"""Side questions: extra model calls of a run use its budget and their provider's model, and lose no summary."""

from __future__ import annotations

import asyncio

import pytest

from sayso.agent import Agent, AgentConfig, Message, ProviderError, Role, UsageStats
from sayso.agent.guards.budget import BudgetLimits, MemoryBudget
from sayso.agent.guards.guardrails import Guardrail, GuardrailsPipeline
from sayso.agent.memory.conversation import ConversationMemory, MemoryDraft
from sayso.agent.memory.entities import EntityMemory
from sayso.agent.memory.graph import KnowledgeGraphMemory
from sayso.agent.observability.run_events import RunEvents
from sayso.agent.run.memory import RunMemory
from sayso.agent.run.state import WITHHELD


class Counting:
    """A model that gives the same answer each time and counts its calls."""

    def __init__(self, says="[]", default_model=""):
        self.says, self.default_model, self.models = says, default_model, []

    async def acomplete(self, **request):
        """Return the same answer to every request."""
        self.models.append(request["model"])
        if isinstance(self.says, Exception):
            raise self.says
        return Message(Role.ASSISTANT, self.says), UsageStats(1, 1, 2)


class No(Guardrail):
    """A guardrail that blocks everything."""

    def check(self, content):
        """Trip on any text."""
        return self.tripped(content, "no")


def learner(provider, **config):
    """Return an agent with all features that call a model after a run."""
    config = {
        "entity_memory": EntityMemory(provider),
        "knowledge_graph": KnowledgeGraphMemory(provider),
        **config,
    }
    return Agent(
        provider=provider,
        config=AgentConfig(summarize_on_trim=True, **config),
        memory=ConversationMemory(2),
    )


@pytest.mark.parametrize("limit", [2, 1000])
def test_spent_budget_stops_side_questions_too(limit):
    """Neither the run that reached the limit nor a refused run calls a model again."""
    model = Counting()
    agent = learner(model, budget=MemoryBudget(BudgetLimits(day_tokens=limit)))
    reasons = [agent.run(words).stop_reason for words in ("one", "two", "three")]
    assert (reasons, len(model.models)) == (
        (["answer", "budget", "budget"], 1) if limit == 2 else (["answer"] * 3, 11)
    )  # fmt: skip


def test_run_over_its_own_limit_asks_no_side_question():
    """The limit of one run counts all its model calls."""
    model = Counting()
    learner(model, max_total_tokens=2).run("one")
    assert len(model.models) == 1


@pytest.mark.parametrize(
    ("says", "config", "asked"),
    [
        (ProviderError("down"), {"max_retries": 0}, 1),
        ("[]", {"guardrails": GuardrailsPipeline(input=[No()])}, 0),
    ],
    ids=["provider down", "guardrail"],
)
def test_failed_run_asks_no_side_question(says, config, asked):
    """The error is returned without two more model calls."""
    model = Counting(says)
    learner(model, **config).run("one")
    assert len(model.models) == asked


def test_other_provider_is_asked_for_its_own_model():
    """Another provider rarely offers the agent's model."""
    other = Counting(default_model="small")
    config = {
        "entity_memory": EntityMemory(other),
        "knowledge_graph": KnowledgeGraphMemory(other, "graphs"),
    }
    agent = learner(Counting("ok"), model="big", summarize_provider=other, **config)
    for words in ("one", "two"):
        agent.run(words)
    assert sorted(other.models) == ["graphs", "graphs", "small", "small", "small"]


def test_agents_own_provider_is_asked_for_the_agents_model():
    """No other model was configured."""
    model = Counting(default_model="small")
    learner(model, model="big").run("one")
    assert set(model.models) == {"big"}


def test_concurrent_summaries_keep_what_both_runs_trimmed():
    """Two runs of one conversation trim at once: the later summary includes the earlier one."""

    class Together:
        """Each summary includes the earlier one and the new messages; both are requested before either is answered."""

        def __init__(self):
            self.both = asyncio.Barrier(2)

        async def acomplete(self, **request):
            text = request["messages"][0].content
            if "earlier_summary" not in text:
                await self.both.wait()
            names = [name for name in ("Ana", "Ben") if name in text]
            return Message(Role.ASSISTANT, f"There were {' and '.join(names)}."), UsageStats(
                1, 1, 2
            )

    async def forget_at_once():
        memory, model = ConversationMemory(max_messages=1), Together()
        config = AgentConfig(model="m", request_timeout=1.0, summarize_on_trim=True)
        runs = [
            RunMemory(model, config, RunEvents(()), is_agents_own=True, scope="") for _ in range(2)
        ]

        async def end(run, name):
            draft = MemoryDraft(
                memory,
                [Message(Role.USER, f"I am {name}"), Message(Role.USER, "Hi")],
                summarizes=True,
            )
            await run.record_trim(draft, may_summarize=True)
            draft.commit()

        await asyncio.gather(
            *(end(run, name) for run, name in zip(runs, ("Ana", "Ben"), strict=True))
        )
        return memory.summary

    assert asyncio.run(forget_at_once()) == "There were Ana and Ben."


def test_summary_includes_one_that_was_written_meanwhile():
    """Each run works on a draft of the memory; the later run trimmed less and still loses nothing."""

    class Summing:
        """Summarizes by names; for the run that trims less, only after the other run was stored."""

        def __init__(self):
            self.is_remembered = asyncio.Event()

        async def acomplete(self, **request):
            text = request["messages"][-1].content
            if "about to be forgotten" not in text:
                return Message(Role.ASSISTANT, "ok"), UsageStats(1, 1, 2)
            if "Dora" not in text:
                await self.is_remembered.wait()
            names = [name for name in ("Ana", "Dora") if name in text]
            return Message(Role.ASSISTANT, f"There were {', '.join(names)}."), UsageStats(1, 1, 2)

    async def both(agent):
        shorter = asyncio.create_task(agent.arun("one"))
        await agent.arun([Message(Role.USER, "one"), Message(Role.USER, "two")])
        agent.provider.is_remembered.set()
        await shorter

    memory = ConversationMemory(max_messages=4)
    for name in ("Ana", "Dora"):
        memory.add_many([Message(Role.USER, f"I am {name}"), Message(Role.ASSISTANT, "hello")])
    asyncio.run(
        both(Agent(provider=Summing(), config=AgentConfig(summarize_on_trim=True), memory=memory))
    )
    assert memory.summary == "There were Ana, Dora."


def test_blocked_message_is_replaced_in_the_history():
    """The history has a placeholder for the message, followed by the refusal."""
    model = Counting("hi")
    agent = Agent(provider=model, memory=ConversationMemory())
    agent.run("hello")
    blocked = Agent(
        provider=model, config=AgentConfig(guardrails=GuardrailsPipeline(input=[No()])), memory=agent.memory
    ).run("my card number")  # fmt: skip
    assert blocked.stop_reason == "guardrail"
    assert [message.content for message in agent.memory.get_history()] == [
        "hello",
        "hi",
        WITHHELD,
        blocked.content,
    ]
