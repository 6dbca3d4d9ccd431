"""OutcomeHistory: tells the model what became of the calls that it only proposed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Literal

from sayso.agent.agent import Agent
from sayso.agent.channel.context import TurnContext
from sayso.agent.channel.long_texts import MAX_TEXT_CHARS, shorten
from sayso.agent.guards.budget import book_usage, budget_refusal
from sayso.agent.messages import FINAL_OUTCOMES, ActionLink, Message, Outcome
from sayso.agent.run.tool_results import Compressor, summarized_result
from sayso.agent.tools.call_texts import truncate
from sayso.agent.tools.screening import fenced, result_for_model, screen
from sayso.channels.i18n.texts import texts_for
from sayso.channels.types import Scope, storable
from sayso.pending.proposals import PLAN_KIND, is_undo, step_ids
from sayso.pending.repository import EXECUTED_STATES, OPEN_STATES, WAITING_STATES, StoredAction
from sayso.pending.store import PendingActionStore

#: Characters that the model reads of the result of a tool that is not there any more.
MAX_CHARS_OF_REMOVED_TOOL = 2000

#: What the model is told beside an outcome.
_NOTES: Mapping[Outcome, str] = {
    "denied": "The user said no. Nothing was done.",
    "expired": "The user did not answer in time. Nothing was done.",
    "dropped": "It was not carried out, and the user is not asked any more.",
    "unknown": "It may have taken effect or not. Do not repeat it without asking the user.",
    "undone": "It was done, and undone later.",
}
#: The note of a refusal outside of a turn: a no of the user, or of the program that asked.
_REFUSED = "It was refused. Nothing was done."
_RUNNING = "The user said yes, and it is being carried out. Do not repeat it."
_NO_RECORD = "No record of it is kept any more: it may have been done or not. Do not repeat it without asking the user."

Records = Mapping[str, StoredAction | None]


class OutcomeHistory:
    """The outcomes of proposed calls in the histories of one channel. Lives as long as its agent and store.

    While a question is open, the result of the call reads as its tool wrote it
    (`pending_confirmation`). Then the result becomes one JSON object: `outcome`, when it came about
    (`at`), and the tool's `result` or `error` in the form that a call which ran at once has, which
    means cut, compressed and screened. Otherwise a model that believes results would go on asking
    for what was done.
    """

    def __init__(self, agent: Agent, store: PendingActionStore) -> None:
        self._agent = agent
        self._store = store

    async def refresh(self, context: TurnContext, *, undo: StoredAction | None = None, compress: bool = True) -> None:
        """Read the actions that may have ended since their results were written, and write how they ended.

        `undo` is an action that undid others in this turn, or tried to. The actions are read in one
        step, and only if some are open, or may still turn out otherwise. With `compress`, a long
        result may be summarized, which calls a model.
        """
        memory, scope = context.memory, context.turn.scope
        if undo is not None:
            await self._note_undo(context, undo)
        messages = [each for each in memory.get_history() if not all(link.is_final for link in each.actions)]
        if not messages:
            return
        records = await self._read(scope, messages)
        results = {}
        for message in messages:
            links = tuple(self._current(link, records, context.received_at) for link in message.actions)
            entries = []
            if _differ(links, message.actions) and all(link.outcome for link in links):
                entries = [await self._entry(context, message, link, records, compress=compress) for link in links]
            results[links[0].id] = _with_outcomes(message, links, entries)
        memory.replace_results(results)

    def end(self, context: TurnContext, stored: StoredAction, outcome: Outcome) -> None:
        """Write that this turn ends an action, or a whole plan, without running it."""
        at = stored.expires_at if outcome == "expired" else context.received_at
        self.end_calls(context, self._ids(context.turn.scope, stored), outcome, at)

    def end_calls(self, context: TurnContext, ids: Iterable[str], outcome: Outcome, at: float) -> None:
        """Write that the actions with these ids ended without being run."""
        is_final = outcome in FINAL_OUTCOMES
        ended = {id_: ActionLink(id_, outcome, at, is_final=is_final) for id_ in ids}
        results = {}
        for message in context.memory.get_history():
            links = tuple(link if link.is_final else ended.get(link.id, link) for link in message.actions)
            if links != message.actions:
                entries = [_outcome_entry(link) for link in links] if all(link.outcome for link in links) else []
                results[links[0].id] = _with_outcomes(message, links, entries)
        context.memory.replace_results(results)

    def reopen(self, context: TurnContext, stored: StoredAction) -> None:
        """Forget what this turn wrote about an action: it could not be changed, so the next turn reads it again."""
        ids = self._ids(context.turn.scope, stored)
        results = {}
        for message in context.memory.get_history():
            links = tuple(ActionLink(link.id) if link.id in ids else link for link in message.actions)
            if links != message.actions:
                results[links[0].id] = replace(message, actions=links)
        context.memory.replace_results(results)

    async def prose(self, context: TurnContext, stored: StoredAction, outcome_text: str) -> str:
        """Return what the history has for the bot's words about an executed action, `outcome_text`.

        They never repeat what a tool returned, because that is in the result of the call. If the call
        is not in the history, the result follows between two marked lines.
        """
        if stored.state not in EXECUTED_STATES:
            return outcome_text
        first_line, _, _ = outcome_text.partition("\n")
        action, texts = stored.action, texts_for(stored.action.language)
        if action.kind == PLAN_KIND or stored.state == "unknown" or not self._is_genuine(context.turn.scope, stored):
            words = first_line
        else:
            words = texts.done(action.preview, "") if stored.state == "done" else texts.failed(action.preview)
        is_linked = any(link.id in self._ids(context.turn.scope, stored) for link in _links(context))
        raw = _raw_text(stored)
        if action.kind == PLAN_KIND or is_undo(action) or is_linked or not raw:
            return words
        return f"{words}\n{fenced(await self._for_model(context, action.kind, raw))}"

    async def _note_undo(self, context: TurnContext, undo: StoredAction) -> None:
        """Link the results of the effects that an undo takes back to the undo, so that they are read again."""
        scope, parts = context.turn.scope, [undo]
        if not undo.is_genuine(self._store.signer, scope):
            return
        if undo.action.kind == PLAN_KIND:
            steps = await self._store.repository.read(scope.conversation.id, step_ids(undo.action))
            parts = [step for step in steps if step and step.is_genuine(self._store.signer, scope)]
        undo_ids = {str(part.action.args.get("of", "")): part.pid for part in parts}
        results = {}
        for message in context.memory.get_history():
            links = tuple(
                replace(link, undo=undo_ids[link.id], is_final=False) if link.id in undo_ids else link
                for link in message.actions
            )
            if links != message.actions:
                results[links[0].id] = replace(message, actions=links)
        context.memory.replace_results(results)

    async def _read(self, scope: Scope, messages: Iterable[Message]) -> Records:
        """Return the actions that the messages are linked to, their undos, and the plans of steps that were not run."""
        links = [link for message in messages for link in message.actions]
        ids = [link.id for link in links] + [link.undo for link in links if link.undo]
        records = await self._read_by_id(scope, ids)
        # Only the plan knows whether its user said no, or whether an earlier step failed.
        cancelled = [stored for stored in records.values() if stored and stored.state == "cancelled"]
        plans = {stored.action.plan for stored in cancelled if stored.action.plan}
        return {**records, **await self._read_by_id(scope, sorted(plans))} if plans else records

    async def _read_by_id(self, scope: Scope, ids: Sequence[str]) -> dict[str, StoredAction | None]:
        found = await self._store.repository.read(scope.conversation.id, tuple(ids))
        return dict(zip(ids, found, strict=True))

    def _current(self, link: ActionLink, records: Records, now: float) -> ActionLink:
        """Return the link as the records show it."""
        if link.is_final:
            return link
        stored, undo = records[link.id], records.get(link.undo)
        if link.undo and undo is None:
            return replace(link, is_final=True)
        if undo is not None and undo.state not in ("done", "unknown", "claimed", "started"):
            undo, link = None, replace(link, undo="")  # it certainly had no effect
        if undo is not None:
            is_undone = undo.state == "done"
            return replace(
                link, outcome="undone" if is_undone else "unknown", at=round(undo.begun_at, 3), is_final=is_undone
            )
        if stored is None:
            return replace(link, outcome=link.outcome or "unknown", is_final=True)
        outcome = self._outcome_of(stored, records, now)
        at = stored.expires_at if outcome == "expired" else stored.begun_at
        if outcome in ("", "denied", "dropped"):  # when that was is not stored
            at = 0.0
        return replace(link, outcome=outcome, at=round(at, 3), is_final=outcome in FINAL_OUTCOMES)

    def _outcome_of(self, stored: StoredAction, records: Records, now: float) -> Outcome | Literal[""]:
        """Return what became of an action by its record; "" while it waits for an answer."""
        state = stored.state
        match state:
            case "armed" | "shown":
                return "expired" if stored.action.is_expired(now) else ""
            case "claimed" | "started" | "unknown":
                return "unknown"
            case "done" | "failed" | "expired":
                return state
            case "superseded":  # its worker died before it began
                return "failed"
        head = records.get(stored.action.plan) if stored.action.plan else stored
        if head is None or head.state != "cancelled":
            return "dropped"  # an earlier step of its plan did not end well
        # A no in a turn is written by that turn. Here it came from outside, which tells the user nothing. What was told
        # otherwise is why a yes was refused: the tool, the preview or the record had changed.
        return "failed" if head.outcome_text else "denied"

    async def _entry(
        self, context: TurnContext, message: Message, link: ActionLink, records: Records, *, compress: bool
    ) -> dict[str, Any]:
        """Return what the model reads of one action."""
        stored = records[link.undo or link.id]
        entry = _outcome_entry(link)
        if stored is None:
            return {**entry, "note": _NO_RECORD} if link.outcome == "unknown" else entry
        if stored.state in OPEN_STATES and stored.state not in WAITING_STATES:
            return {**entry, "note": _RUNNING}
        raw = _raw_text(stored)
        if raw and link.outcome in ("done", "undone", "failed"):
            text = await self._for_model(context, message.tool_name, raw, compress=compress)
            entry["error" if link.outcome == "failed" else "result"] = _json_or_text(text)
        return entry

    async def _for_model(self, context: TurnContext, tool_name: str, raw: str, *, compress: bool = False) -> str:
        """Return a result as the model reads one: cut, compressed if it is long, and screened."""
        raw, config = shorten(raw, MAX_TEXT_CHARS), self._agent.config
        tool = next((each for each in self._agent.tools if each.name == tool_name), None)
        if tool is None:  # it may have been one whose results are screened
            return screen(tool_name, truncate(raw, MAX_CHARS_OF_REMOVED_TOOL))
        compressor = Compressor(self._agent.provider, config) if config.tool.compress_results and compress else None
        if compressor is None or not compressor.is_due(raw) or await self._is_budget_spent(context):
            return await result_for_model(tool, raw)
        text, summary = await summarized_result(compressor, tool, raw)
        self._agent.usage.add_usage(summary.usage)
        if config.budget is not None:
            await book_usage(config.budget, context.memory_scope, summary.usage)
        return text

    async def _is_budget_spent(self, context: TurnContext) -> bool:
        budget = self._agent.config.budget
        return budget is not None and await budget_refusal(budget, context.memory_scope) is not None

    def _ids(self, scope: Scope, stored: StoredAction) -> frozenset[str]:
        """Return the id of an action and, of a plan, those of its steps."""
        is_plan = stored.action.kind == PLAN_KIND and self._is_genuine(scope, stored)
        return frozenset((stored.pid, *(step_ids(stored.action) if is_plan else ())))

    def _is_genuine(self, scope: Scope, stored: StoredAction) -> bool:
        return stored.is_genuine(self._store.signer, scope)


def _links(context: TurnContext) -> list[ActionLink]:
    """Return the links of all results in the history."""
    return [link for message in context.memory.get_history() for link in message.actions]


def _differ(links: Sequence[ActionLink], before: Sequence[ActionLink]) -> bool:
    """Return whether the result must be written anew. That of an unknown outcome is: its action may still have run."""
    if any(link.outcome == "unknown" for link in links):
        return True
    return [(link.outcome, link.at) for link in links] != [(link.outcome, link.at) for link in before]


def _raw_text(stored: StoredAction) -> str:
    """Return what the tool returned or why it failed, "" if it said nothing."""
    if stored.output or stored.result:
        return stored.output or stored.result
    plain_text = texts_for(stored.action.language).done(stored.action.preview, "")
    return "" if stored.outcome_text == plain_text else stored.outcome_text


def _outcome_entry(link: ActionLink) -> dict[str, Any]:
    """Return an outcome, when it came about in UTC, and what it means."""
    entry: dict[str, Any] = {"outcome": link.outcome}
    if link.at:
        entry["at"] = f"{datetime.fromtimestamp(link.at, UTC):%Y-%m-%dT%H:%M:%SZ}"
    if link.outcome and link.outcome in _NOTES:
        entry["note"] = _REFUSED if link.outcome == "denied" and not link.at else _NOTES[link.outcome]
    return entry


def _with_outcomes(message: Message, links: tuple[ActionLink, ...], entries: Sequence[dict[str, Any]]) -> Message:
    """Return the result of a call with what became of its actions. Without entries its content stays as it was."""
    if not entries:
        return replace(message, actions=links)
    content = entries[0]
    if len(entries) > 1:
        content = {"outcome": _common_outcome([link.outcome for link in links]), "actions": list(entries)}
    text = storable(json.dumps(content, ensure_ascii=False))
    return replace(message, content=text, actions=links, kept=None)


def _common_outcome(outcomes: Sequence[str]) -> str:
    """Return the outcome of several actions of one call: "failed" if some were done and others were not."""
    if len(set(outcomes)) == 1:
        return outcomes[0]
    return "unknown" if "unknown" in outcomes else "failed"


def _json_or_text(text: str) -> Any:
    """Return the object or list that a text is in JSON, or else the text."""
    try:
        value = json.loads(text, parse_constant=_refuse) if text.startswith(("{", "[")) else text
    except (ValueError, RecursionError):
        return text
    return value


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")
