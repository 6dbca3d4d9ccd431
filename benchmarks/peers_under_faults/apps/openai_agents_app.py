"""OpenAI Agents SDK: `needs_approval`, a SQLiteSession, and the paused RunState in SQLite.

https://openai.github.io/openai-agents-python/human_in_the_loop/
https://openai.github.io/openai-agents-python/sessions/

An author would have to add: a claim, so that two taps do not run one call twice; a stored result of
the tool, so that a repeated webhook does not run it again; an outbox for the reply; what becomes of
a plain message while a question is open; who may answer and for how long.
"""

from __future__ import annotations

import os
import sqlite3

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    Runner,
    RunState,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

from benchmarks.peers_under_faults import effects
from benchmarks.peers_under_faults.apps import chat
from benchmarks.peers_under_faults.apps.chat import Update


@function_tool(needs_approval=True)
def refund_order(order: int) -> str:
    """Refund an order."""
    return effects.refund(order)


def main() -> None:
    """Serve the bot."""
    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=os.environ[chat.MODEL], api_key="none")
    model = OpenAIChatCompletionsModel("strict", client)
    agent = Agent(name="shop", model=model, tools=[refund_order])

    async def handle(update: Update) -> None:
        session = SQLiteSession(update.chat, chat.data("sessions.sqlite"))
        stored = _load(update.chat)
        asked = set()
        if update.answer and stored:
            state = await RunState.from_string(agent, stored)
            waiting = {item.raw_item.call_id: item for item in state.get_interruptions()}
            asked = set(waiting)
            answered = [update.call] if update.call else list(waiting)
            if not asked & set(answered):
                chat.say(update.chat, chat.NO_LONGER_OPEN)
                return
            for call in answered:
                if update.answer == "yes":
                    state.approve(waiting[call])
                else:
                    reason = f"The user rejected this call: {update.reason or 'no'}"
                    state.reject(waiting[call], rejection_message=reason)
            result = await Runner.run(agent, state, session=session)
        elif update.call:
            chat.say(update.chat, chat.NO_LONGER_OPEN)
            return
        else:
            result = await Runner.run(agent, update.text, session=session)
        if not result.interruptions:
            _save(update.chat, "")
            chat.say(update.chat, result.final_output)
            return
        _save(update.chat, result.to_state().to_string())
        for item in result.interruptions:
            if item.raw_item.call_id not in asked:
                question = f"Refund order with {item.arguments}?"
                chat.ask(update.chat, question, item.raw_item.call_id)

    chat.serve(chat.web(handle))


def _states() -> sqlite3.Connection:
    database = sqlite3.connect(chat.data("states.sqlite"))
    database.execute("CREATE TABLE IF NOT EXISTS states (chat PRIMARY KEY, state)")
    return database


def _load(chat_id: str) -> str:
    row = _states().execute("SELECT state FROM states WHERE chat = ?", (chat_id,)).fetchone()
    return row[0] if row else ""


def _save(chat_id: str, state: str) -> None:
    with _states() as database:
        database.execute("INSERT OR REPLACE INTO states VALUES (?, ?)", (chat_id, state))
