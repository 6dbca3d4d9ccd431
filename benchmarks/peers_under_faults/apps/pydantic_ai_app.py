"""pydantic-ai with DBOS: a workflow for each message, which waits for the decision with `DBOS.recv`.

https://ai.pydantic.dev/durable_execution/dbos
https://ai.pydantic.dev/deferred-tools
https://docs.dbos.dev/python/examples/agent-inbox

The tool is a step, as the first page asks for tools with side effects. The id of a workflow comes
from the webhook, so a webhook that is repeated starts nothing.

An author would have to add: an idempotency key in the tool, since a step that was killed runs
again; who may answer; a check that what runs is what was shown.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from dbos import DBOS, SetWorkflowID
from fastapi import FastAPI
from openai import AsyncOpenAI
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, ToolDenied
from pydantic_ai.durable_exec.dbos import DBOSDurability
from pydantic_ai.messages import ModelMessagesTypeAdapter
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from benchmarks.peers_under_faults import effects
from benchmarks.peers_under_faults.apps import chat
from benchmarks.peers_under_faults.apps.chat import Update

#: Without a limit from outside, a question is open for a day.
DAY = 24 * 3600.0
#: How a request to the model is tried again.
RETRIED: Any = {"retries_allowed": True, "max_attempts": 5}


# DBOS retries a step, and the client does not: as the page on step retries recommends.
client = AsyncOpenAI(base_url=os.environ.get(chat.MODEL), api_key="none", max_retries=0)
agent = Agent(
    OpenAIChatModel("strict", provider=OpenAIProvider(openai_client=client)),
    name="shop",
    output_type=[str, DeferredToolRequests],
    capabilities=[DBOSDurability(model_step_config=RETRIED)],
)


@agent.tool_plain(requires_approval=True)
@DBOS.step()
async def refund_order(order: int) -> str:
    """Refund an order."""
    return await asyncio.to_thread(effects.refund, order)


@DBOS.workflow()
async def answer(chat_id: str, text: str) -> None:
    """Answer one message, however long its questions are open."""
    history = await load(chat_id)
    result: Any = await agent.run(text, message_history=history)
    while isinstance(result.output, DeferredToolRequests):
        results = await decide(chat_id, result.output)
        messages = result.all_messages()
        result = await agent.run(message_history=messages, deferred_tool_results=results)
    await save(chat_id, result.all_messages_json())
    await tell(chat_id, result.output)


async def decide(chat_id: str, requests: DeferredToolRequests) -> DeferredToolResults:
    """Ask about each call, and wait until all are answered or the time is over."""
    results = DeferredToolResults()
    for call in requests.approvals:
        order = call.args_as_dict()["order"]
        tapped = f"{DBOS.workflow_id}/{call.tool_call_id}"
        await question(chat_id, f"Refund order {order}?", tapped)
    seconds = float(os.environ.get(chat.EXPIRY, DAY))
    waiting = {call.tool_call_id for call in requests.approvals}
    while waiting:
        decision = await DBOS.recv_async("decision", timeout_seconds=seconds)
        if decision is None:
            decision = {"call": "", "denied": "the question expired"}
        denied = ToolDenied(f"The user denied this call: {decision['denied']}")
        for each in [decision["call"]] if decision["call"] else list(waiting):
            results.approvals[each] = denied if decision["denied"] else True
            waiting.discard(each)
    return results


@DBOS.step()
async def load(chat_id: str) -> list[Any]:
    """Return the history of a chat."""
    return await asyncio.to_thread(_load, chat_id)


@DBOS.step()
async def save(chat_id: str, messages: bytes) -> None:
    """Store the history of a chat."""
    await asyncio.to_thread(_save, chat_id, messages)


@DBOS.step(retries_allowed=True)
async def question(chat_id: str, text: str, call: str) -> None:
    """Send a question."""
    await asyncio.to_thread(chat.ask, chat_id, text, call)


@DBOS.step(retries_allowed=True)
async def tell(chat_id: str, text: str) -> None:
    """Send a message."""
    await asyncio.to_thread(chat.say, chat_id, text)


async def handle(update: Update) -> None:
    """Send a decision to its workflow, or start a workflow for a message."""
    if update.answer:
        found = await DBOS.list_workflows_async(
            workflow_id_prefix=update.call.partition("/")[0] or f"{update.chat}-",
            status=["PENDING", "ENQUEUED"],
            name=answer.__qualname__,
        )
        if found:
            denied = "" if update.answer == "yes" else update.reason or "no"
            decision = {"call": update.call.partition("/")[2], "denied": denied}
            workflow = found[-1].workflow_id
            await DBOS.send_async(workflow, decision, "decision", idempotency_key=update.event)
            return
        if update.call:
            await asyncio.to_thread(chat.say, update.chat, chat.NO_LONGER_OPEN)
            return
    with SetWorkflowID(f"{update.chat}-{update.event}"):
        await DBOS.start_workflow_async(answer, update.chat, update.text)


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
    """Go on with the workflows that a killed process left."""
    DBOS.launch()
    yield


def main() -> None:
    """Serve the bot."""
    url = f"sqlite:///{chat.data('dbos.sqlite')}"
    # The version is fixed, as the documentation asks for deployments that go on with old runs.
    DBOS(config={"name": "shop", "system_database_url": url, "application_version": "1"})
    chat.serve(chat.web(handle, lifespan))


def _histories() -> sqlite3.Connection:
    database = sqlite3.connect(chat.data("histories.sqlite"))
    database.execute("CREATE TABLE IF NOT EXISTS histories (chat PRIMARY KEY, messages)")
    return database


def _load(chat_id: str) -> list[Any]:
    row = (
        _histories().execute("SELECT messages FROM histories WHERE chat = ?", (chat_id,)).fetchone()
    )
    return ModelMessagesTypeAdapter.validate_json(row[0]) if row else []


def _save(chat_id: str, messages: bytes) -> None:
    with _histories() as database:
        database.execute("INSERT OR REPLACE INTO histories VALUES (?, ?)", (chat_id, messages))
