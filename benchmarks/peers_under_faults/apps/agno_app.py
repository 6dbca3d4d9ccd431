"""Agno: AgentOS with `@approval`, whose records are resolved over its REST API, then the run continues.

https://docs.agno.com/examples/agent-os/human-in-the-loop/with-approval-record
https://docs.agno.com/agent-os/approvals/overview

AgentOS makes one record for all calls of a pause, so two calls are one question.

An author would have to add: an outbox for the reply; how to go on with a run that was killed after
its record was resolved; who may answer and for how long.
"""

from __future__ import annotations

import os
from typing import Any

import httpx
from agno.agent import Agent
from agno.approval import approval
from agno.db.sqlite import SqliteDb
from agno.models.openai import OpenAIChat
from agno.os import AgentOS
from agno.tools import tool

from benchmarks.peers_under_faults import effects
from benchmarks.peers_under_faults.apps import chat
from benchmarks.peers_under_faults.apps.chat import Update


@approval(type="required")
@tool()
def refund_order(order: int) -> str:
    """Refund an order."""
    return effects.refund(order)


def main() -> None:
    """Serve the bot."""
    db = SqliteDb(db_file=chat.data("agno.sqlite"), approvals_table="approvals")
    agent = Agent(
        id="shop",
        model=OpenAIChat(id="strict", base_url=os.environ[chat.MODEL], api_key="none"),
        tools=[refund_order],
        db=db,
        add_history_to_context=True,
        telemetry=False,
    )

    async def handle(update: Update) -> None:
        async with _client(app) as client:
            if update.answer:
                asked = await _open_approval(client, update)
                if asked is None and update.call:
                    chat.say(update.chat, chat.NO_LONGER_OPEN)
                    return
                if asked is not None:
                    run = await _continue(client, update, asked)
                    await _tell(client, update, run)
                    return
            form = {"message": update.text, "session_id": update.chat, "stream": "false"}
            answer = await client.post("/agents/shop/runs", data=form)
            answer.raise_for_status()
            await _tell(client, update, answer.json())

    app = AgentOS(agents=[agent], db=db, base_app=chat.web(handle), telemetry=False).get_app()
    chat.serve(app)


def _client(app: Any) -> httpx.AsyncClient:
    """Return a client of the AgentOS in this process."""
    transport = httpx.ASGITransport(app)
    return httpx.AsyncClient(transport=transport, base_url="http://agno", timeout=60)


async def _open_approval(client: httpx.AsyncClient, update: Update) -> dict[str, Any] | None:
    """Return the record that the update answers, None if there is none that is open."""
    answer = await client.get("/approvals", params={"status": "pending", "limit": 100})
    answer.raise_for_status()
    for each in answer.json()["data"]:
        if update.call in ("", each["id"]) and each["session_id"] == update.chat:
            return each
    return None


async def _continue(
    client: httpx.AsyncClient, update: Update, asked: dict[str, Any]
) -> dict[str, Any]:
    """Resolve the record, and continue its run."""
    status = "approved" if update.answer == "yes" else "rejected"
    resolution: dict[str, Any] = {"status": status, "resolved_by": update.chat}
    if update.reason:
        resolution["resolution_data"] = {"note": update.reason}
    resolved = await client.post(f"/approvals/{asked['id']}/resolve", json=resolution)
    resolved.raise_for_status()
    form = {"session_id": update.chat, "stream": "false"}
    answer = await client.post(f"/agents/shop/runs/{asked['run_id']}/continue", data=form)
    answer.raise_for_status()
    return answer.json()


async def _tell(client: httpx.AsyncClient, update: Update, run: dict[str, Any]) -> None:
    """Send what the run said, or its question. Raises RuntimeError for a run that failed."""
    if run["status"] == "COMPLETED":
        chat.say(update.chat, run["content"])
        return
    if run["status"] != "PAUSED":
        raise RuntimeError(f"the run ended as {run['status']}")
    params = {"run_id": run["run_id"], "status": "pending", "approval_type": "required"}
    answer = await client.get("/approvals", params=params)
    for record in answer.json()["data"]:
        calls = [each["tool_execution"]["tool_args"] for each in record["requirements"]]
        question = ", ".join(f"Refund order {call['order']}?" for call in calls)
        chat.ask(update.chat, question, record["id"])
