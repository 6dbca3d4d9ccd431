"""LangGraph: `create_agent` with HumanInTheLoopMiddleware and a SqliteSaver, durability "sync".

https://docs.langchain.com/oss/python/langchain/human-in-the-loop
https://docs.langchain.com/oss/python/langgraph/durable-execution
https://docs.langchain.com/oss/python/langgraph/interrupts

Interrupts are per call, which the documentation plans as the default: one of two calls can then be
answered alone. A run that ended in the middle goes on with `invoke(None)`.

An author would have to add: a claim for each thread, so that two taps do not run one call twice;
an outbox for the reply; what becomes of a plain message while a question is open; who may answer
and for how long; an idempotency key in the tool.
"""

from __future__ import annotations

import os
import sqlite3
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import Command

from benchmarks.peers_under_faults import effects
from benchmarks.peers_under_faults.apps import chat
from benchmarks.peers_under_faults.apps.chat import Update


@tool
def refund_order(order: int) -> str:
    """Refund an order."""
    return effects.refund(order)


def main() -> None:
    """Serve the bot."""
    database = sqlite3.connect(chat.data("langgraph.sqlite"), check_same_thread=False)
    agent = create_agent(
        ChatOpenAI(model="strict", base_url=os.environ[chat.MODEL], api_key="none"),
        tools=[refund_order],
        middleware=[
            HumanInTheLoopMiddleware(
                interrupt_on={"refund_order": {"allowed_decisions": ["approve", "reject"]}},
                interrupt_mode="per_call",
            )
        ],
        checkpointer=SqliteSaver(database),
    )

    def handle(update: Update) -> None:
        config: Any = {"configurable": {"thread_id": update.chat}}
        state = agent.get_state(config)
        waiting = {interrupt.id: interrupt for interrupt in state.interrupts}
        answered = [update.call] if update.call else list(waiting)
        step: Any
        if update.answer and waiting.keys() & set(answered):
            step = Command(resume={each: _decision(update) for each in answered})
        elif update.call and state.next and not waiting:
            step = None  # the run was interrupted by a crash or an error: go on from its checkpoint
        elif update.call:
            chat.say(update.chat, chat.NO_LONGER_OPEN)
            return
        else:
            step = {"messages": [{"role": "user", "content": update.text}]}
        result = agent.invoke(step, config, durability="sync", version="v2")
        for interrupt in result.interrupts:
            if interrupt.id not in waiting:
                question = f"Refund order {interrupt.value['args']['order']}?"
                chat.ask(update.chat, question, interrupt.id)
        if not result.interrupts:
            chat.say(update.chat, result.value["messages"][-1].content)

    chat.serve(chat.web(handle))


def _decision(update: Update) -> dict[str, str]:
    """Return the decision as the middleware reads it."""
    if update.answer == "yes":
        return {"type": "approve"}
    return {"type": "reject", "message": f"The user rejected this call: {update.reason or 'no'}"}
