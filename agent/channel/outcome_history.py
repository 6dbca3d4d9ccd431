"""OutcomeHistory: tells the model what became of the calls that it only proposed.

The result of such a call, a message in the history, has an ActionLink for each action that the call
proposed. While the question is open, the result is empty, or what the tool itself wrote when it
asked (`pending_confirmation`). Once the action has ended, the result becomes one JSON object:
`outcome`, who decided (`decided_by`), when that was (`at`), and the tool's `result` or `error`. A
model that believes its history would otherwise go on asking for what was done.

The `result` reads as later turns read that of a call which ran at once: shortened and screened. No
model summarizes it, because the history keeps so little of it that the summary would cost more.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Literal

from sayso.agent.agent import Agent
from sayso.agent.channel.context import TurnContext
from sayso.agent.decisions import outcome_entry
from sayso.agent.messages import FINAL_OUTCOMES, ActionLink, ActionOutcome, Message
from sayso.agent.run.json_in_text import json_or_text
from sayso.agent.run.long_results import (
    MAX_FULL_CHARS,
    REMEMBERED_CHARS,
    shorten_for_history,
    shorten_result,
)
from sayso.agent.run.pause import WAITING_FOR_OTHERS, rename_actions
from sayso.agent.tools.screening import fenced, result_for_model, screen
from sayso.agent.tools.text_cuts import shorten, truncate
from sayso.channels.i18n.texts import texts_for
from sayso.channels.types import Scope, storable
from sayso.pending.action import PLAN_KIND, PendingAction
from sayso.pending.approvals.votes import names_of_votes
from sayso.pending.plans import is_undo, step_ids
from sayso.pending.standing_yes import standing_use_of
from sayso.pending.store import PendingActionStore
from sayso.pending.stored_action import EXECUTED_STATES, OPEN_STATES, WAITING_STATES, StoredAction

#: Characters that the model reads of the result of a tool that is not there any more.
MAX_CHARS_OF_REMOVED_TOOL = 2000

#: The outcomes that the user has decided, by a yes or a no.
_DECIDED: frozenset[ActionOutcome] = frozenset(("done", "failed", "denied", "unknown", "undone"))
#: The note of an action that was refused outside of a turn, by the user or by the program that
#: asked.
_REFUSED = "It was refused. Nothing was done."
#: The note of an action that other people have denied.
_DENIED_BY_OTHERS = (
    "The people who decide said no. Nothing was done. "
    "Do not propose it again unless the user asks for it."
)
#: Who decided about an action that ran under a standing yes, and its note.
_STANDING = "standing yes of the user"
_UNDER_STANDING_YES = "The user was not asked again: it ran under a yes that they gave earlier."
#: The note of an action whose undo failed. `undo_error` says why.
_UNDO_FAILED = "The user tried to undo it, and that failed."
#: The note of an action that is running.
_RUNNING = "The user said yes, and it is being carried out. Do not repeat it."
#: The note of an action whose record Redis has deleted.
_NO_RECORD = (
    "No record of it is kept any more: it may have been done or not. "
    "Do not repeat it without asking the user."
)

#: Stored actions by their ids; None for those that are not stored any more.
Records = Mapping[str, StoredAction | None]


class OutcomeHistory:
    """Writes the outcomes of proposed calls into the histories of one channel.

    Lives as long as its agent and store. A history is the memory of a TurnContext: it is stored
    with the other changes of the turn.
    """

    def __init__(self, agent: Agent, store: PendingActionStore) -> None:
        self._agent = agent
        self._store = store

    async def refresh(self, context: TurnContext, *, undo: StoredAction | None = None) -> None:
        """Write into the history how actions have ended since their results were written.

        An action may end without a turn that could write it: its time is over, a program decides
        it, or its worker dies. So every turn calls this before a model reads the history.

        `undo` is an action that undid others in this turn, or tried to; None for none. The actions
        are read from the store in one step, and only those whose outcome may have changed.
        """
        if undo is not None:
            await self._link_to_undo(context, undo)
        messages = [each for each in context.memory.get_history() if _may_change(each)]
        if not messages:
            return

        records = await self._read(context.turn.scope, messages)
        results = {}
        for message in messages:
            links = tuple(
                self._current(link, records, context.received_at) for link in message.actions
            )
            entries = []
            if _differ(links, message.actions) and all(link.outcome for link in links):
                entries = [await self._entry(message, link, records) for link in links]
            results[links[0].id] = _with_outcomes(message, links, entries)
        context.memory.replace_results(results)

    def write_outcome(
        self,
        context: TurnContext,
        stored: StoredAction,
        outcome: ActionOutcome,
        *,
        words: str = "",
        decided_by: str = "",
    ) -> None:
        """Write that this turn ends an action, or a whole plan, without running it.

        `words`: what the person wrote, if it may say why; "" for nothing. `decided_by`: the names
        of the people who decided in place of the user; "" if the user decided.
        """
        at = context.received_at
        if outcome == "expired":
            at = stored.expires_at
        self.write_outcomes(
            context, action_ids(stored), outcome, at, words=words, decided_by=decided_by
        )

    def write_outcomes(
        self,
        context: TurnContext,
        ids: Iterable[str],
        outcome: ActionOutcome,
        at: float,
        *,
        words: str = "",
        decided_by: str = "",
    ) -> None:
        """Write that the actions with these ids ended at `at` (Unix seconds) without being run."""
        is_final = outcome in FINAL_OUTCOMES
        ended = {id_: ActionLink(id_, outcome, at, is_final=is_final) for id_ in ids}
        results = {}
        for message in context.memory.get_history():
            links = tuple(_ended_link(link, ended) for link in message.actions)
            if links == message.actions:
                continue
            entries = []
            if all(link.outcome for link in links):
                entries = [_outcome_entry(link, words, decided_by) for link in links]
            results[links[0].id] = _with_outcomes(message, links, entries)
        context.memory.replace_results(results)

    async def waiting_for_others(self, context: TurnContext) -> list[StoredAction]:
        """Return the actions of the history that wait for the decision of other people."""
        return [
            each
            for each in await self._of_others(context)
            if each.state in WAITING_STATES and not each.action.is_expired(context.received_at)
        ]

    async def withdrawn_by_turn(self, context: TurnContext) -> list[StoredAction]:
        """Return the actions that an earlier attempt at this turn has taken back."""
        event = context.turn.event_id
        return [
            each
            for each in await self._of_others(context)
            if each.state == "cancelled" and each.decided_by_event == event
        ]

    async def _of_others(self, context: TurnContext) -> list[StoredAction]:
        """Return the actions of the history that other people decide, and that may have ended."""
        ids = [link.id for link in links_in_history(context) if not link.is_final]
        if not ids:
            return []
        records = await self._read_by_id(context.turn.scope, ids)
        return [
            each
            for each in records.values()
            if each is not None and each.action.approval is not None
        ]

    def write_waiting(self, context: TurnContext, ids: Collection[str]) -> None:
        """Write into the results of calls that other people decide about them.

        `ids` are those of the actions. The conversation goes on meanwhile, so that a model reads
        these results before anything is decided.
        """
        results = {}
        for message in context.memory.get_history():
            if any(link.id in ids for link in message.actions):
                results[message.actions[0].id] = replace(message, content=WAITING_FOR_OTHERS)
        context.memory.replace_results(results)

    def link_to_change(self, context: TurnContext, successors: Mapping[str, PendingAction]) -> None:
        """Link the calls of a changed question to the actions after the change.

        `successors`: these actions, by the ids of those before.
        """
        results = {}
        for message in context.memory.get_history():
            links = tuple(_linked_to_successor(link, successors) for link in message.actions)
            if links != message.actions:
                results[message.actions[0].id] = replace(message, actions=links)
        context.memory.replace_results(results)
        new_ids = {id_: action.pending_action_id for id_, action in successors.items()}
        rename_actions(context.memory, new_ids)

    def forget_outcome(self, context: TurnContext, stored: StoredAction) -> None:
        """Remove what this turn wrote about an action whose record it could not change.

        The next turn reads the record again, and writes the true outcome.
        """
        ids = action_ids(stored)
        results = {}
        for message in context.memory.get_history():
            links = tuple(_open_link(link) if link.id in ids else link for link in message.actions)
            if links != message.actions:
                results[links[0].id] = replace(message, actions=links)
        context.memory.replace_results(results)

    async def history_text(
        self, context: TurnContext, stored: StoredAction, outcome_text: str
    ) -> str:
        """Return what the history keeps as the bot's answer, where the user reads `outcome_text`.

        It says how each step of a plan ended, and whether an action was undone since. What a tool
        returned is left out, because the result of the call has it. If the call is not in the
        history, the result follows between two marked lines.
        """
        if stored.state not in EXECUTED_STATES:
            return outcome_text
        action = stored.action
        is_plan = action.kind == PLAN_KIND
        is_settled_now = stored.decided_by_event == context.turn.event_id
        report = ""
        # An action that ended before this turn may have been undone since.
        if is_plan or not is_settled_now:
            report = await self._store.finished_actions.report(
                context.turn.scope, stored, results="none"
            )
        possible_reasons = [stored]
        if is_plan and stored.state == "failed":
            steps = await self._read_by_id(context.turn.scope, step_ids(action))
            possible_reasons += [step for step in steps.values() if step is not None]
        answer = _own_words(stored, outcome_text, report, possible_reasons)

        ids = action_ids(stored)
        is_linked = any(link.id in ids for link in links_in_history(context))
        raw = _raw_text(stored)
        if report or is_plan or is_undo(action) or is_linked or not raw:
            return answer
        text = await self._for_model(action.kind, raw)
        return f"{answer}\n{fenced(shorten_result(text, REMEMBERED_CHARS))}"

    async def _link_to_undo(self, context: TurnContext, undo: StoredAction) -> None:
        """Link the results that an undo takes back to the undo, so that they are read again."""
        parts: list[StoredAction | None] = [undo]
        if undo.action.kind == PLAN_KIND:
            steps = await self._read_by_id(context.turn.scope, step_ids(undo.action))
            parts = list(steps.values())
        undo_ids = {str(part.action.args.get("of", "")): part.action_id for part in parts if part}

        results = {}
        for message in context.memory.get_history():
            links = tuple(_linked_to_undo(link, undo_ids) for link in message.actions)
            if links != message.actions:
                results[links[0].id] = replace(message, actions=links)
        context.memory.replace_results(results)

    async def _read(self, scope: Scope, messages: Iterable[Message]) -> Records:
        """Return the actions of these messages, their undos, and the plans of cancelled steps."""
        links = list(chain.from_iterable(message.actions for message in messages))
        ids = [link.id for link in links]
        undo_ids = [link.undo for link in links if link.undo]
        records = await self._read_by_id(scope, ids + undo_ids)

        # Only the plan knows whether its user said no, or whether an earlier step failed.
        cancelled = [each for each in records.values() if each and each.state == "cancelled"]
        plans = {stored.action.plan for stored in cancelled if stored.action.plan}
        if not plans:
            return records
        return {**records, **await self._read_by_id(scope, sorted(plans))}

    async def _read_by_id(self, scope: Scope, ids: Sequence[str]) -> dict[str, StoredAction | None]:
        """Return the actions with these ids. Tampered ones are marked as changed."""
        signer = self._store.signer
        stored_actions = await self._store.repository.load(scope.conversation.id, tuple(ids))
        records: dict[str, StoredAction | None] = dict(zip(ids, stored_actions, strict=True))
        for id_, record in records.items():
            if record is not None:
                records[id_] = record.verified(signer, scope)
        return records

    def _current(self, link: ActionLink, records: Records, now: float) -> ActionLink:
        """Return the link with the outcome of the records. `now`: of the turn, in Unix seconds."""
        if link.is_final:
            return link

        if link.undo:
            undo = records.get(link.undo)
            if undo is None:
                return replace(link, is_final=True)
            at = round(undo.started_at, 3)
            match undo.state:
                case "done":
                    return replace(link, outcome="undone", at=at, is_final=True)
                case "unknown" | "claimed" | "started":
                    return replace(link, outcome="unknown", at=at, is_final=False)
                case "failed":
                    pass  # the link keeps the undo: the model reads why it failed
                case _:
                    link = replace(link, undo="")  # it certainly had no effect

        stored = records[link.id]
        if stored is None:
            return replace(link, outcome=link.outcome or "unknown", is_final=True)
        outcome = self._outcome_of(stored, records, now)
        match outcome:
            case "expired":
                at = stored.expires_at
            case "" | "denied" | "replaced":  # the record does not say when
                at = 0.0
            case _:
                at = stored.started_at
        is_final = outcome in FINAL_OUTCOMES
        return replace(link, outcome=outcome, at=round(at, 3), is_final=is_final)

    def _outcome_of(
        self, stored: StoredAction, records: Records, now: float
    ) -> ActionOutcome | Literal[""]:
        """Return what became of an action by its record; "" while it waits for an answer.

        | the state of the record                          | the outcome                          |
        |--------------------------------------------------|--------------------------------------|
        | armed, shown                                     | "", or expired if its time is over   |
        | claimed, started, unknown                        | unknown                              |
        | done, failed, expired                            | the same                             |
        | superseded by a change of the person             | replaced                             |
        | superseded because its worker died before it ran | failed                               |
        | cancelled, because an earlier step of its plan   | replaced                             |
        | did not end well                                 |                                      |
        | cancelled, because its yes was refused           | failed                               |
        | cancelled by a no from outside of turns          | denied                               |

        A no within a turn is not among them: that turn writes the outcome into the history itself.
        """
        state = stored.state
        match state:
            case "armed" | "shown":
                return "expired" if stored.action.is_expired(now) else ""
            case "claimed" | "started" | "unknown":
                return "unknown"
            case "done" | "failed" | "expired":
                return state
            case "superseded":
                texts = texts_for(stored.action.language)
                text_of_change = texts.changed_meanwhile(stored.action.preview)
                is_changed = stored.outcome_text.startswith(text_of_change)
                return "replaced" if is_changed else "failed"

        # It was cancelled. Why a step was cancelled, only its plan knows.
        head: StoredAction | None = stored
        if stored.action.plan:
            head = records.get(stored.action.plan)
        if head is None or head.state != "cancelled":
            return "replaced"
        # Only a refused yes has a text: the tool, the preview or the record had changed.
        return "failed" if head.outcome_text else "denied"

    async def _entry(self, message: Message, link: ActionLink, records: Records) -> dict[str, Any]:
        """Return what the model reads of one action, as JSON-ready data.

        If the action was undone, or may have been, the entry has the result of the undo. If the
        undo failed, the action is as it was before: the entry has its own result, and says why the
        undo failed.
        """
        has_failed_undo = _has_failed_undo(link)
        described_id = link.id
        if link.undo and not has_failed_undo:
            described_id = link.undo
        stored = records[described_id]
        entry = _outcome_entry(link)
        if stored is None:
            if link.outcome == "unknown":
                entry["note"] = _NO_RECORD
            return entry
        if stored.state in OPEN_STATES and stored.state not in WAITING_STATES:
            entry["note"] = _RUNNING
            return entry

        # The yes to a plan is refused as a whole. Only the step that is the reason says so.
        plan = None
        if link.outcome == "replaced":
            plan = records.get(stored.action.plan)
        if plan is not None and _refusal_in(plan.outcome_text, stored):
            entry["error"] = await self._for_model(message.tool_name, plan.outcome_text)
            return entry

        raw = _raw_text(stored)
        if raw and link.outcome in ("done", "undone", "failed"):
            text = await self._for_model(message.tool_name, raw)
            key = "error" if link.outcome == "failed" else "result"
            entry[key] = json_or_text(text)
        if stored.votes_text and "decided_by" in entry:
            entry["decided_by"] = names_of_votes(stored, "yes")
        if standing_use_of(stored, self._store.signer) and "decided_by" in entry:
            entry["decided_by"] = _STANDING
            entry["note"] = _UNDER_STANDING_YES
        undo = records.get(link.undo) if has_failed_undo else None
        if undo is not None:
            entry["note"] = _UNDO_FAILED
            text = await self._for_model(message.tool_name, _raw_text(undo))
            entry["undo_error"] = json_or_text(text)
        return entry

    async def _for_model(self, tool_name: str, raw: str) -> str:
        """Return a result as the model reads one: cut to the tool's limit, and screened."""
        raw = shorten(raw, MAX_FULL_CHARS)
        tool = next((each for each in self._agent.tools if each.name == tool_name), None)
        if tool is None:  # it may have been one whose results are screened
            return screen(tool_name, truncate(raw, MAX_CHARS_OF_REMOVED_TOOL))
        return await result_for_model(tool, raw)


def _refusal_in(outcome_text: str, asked: StoredAction) -> str:
    """Return the words with which a yes was refused because of this action or step, "" for none.

    `outcome_text` is the outcome of the action or the plan that the yes was about.
    """
    texts = texts_for(asked.action.language)
    refusals = (texts.tool_changed(asked.action.preview), texts.unsafe(asked.action.preview))
    return next((each for each in refusals if outcome_text.startswith(each)), "")


def _own_words(
    stored: StoredAction,
    outcome_text: str,
    report: str,
    possible_reasons: Iterable[StoredAction],
) -> str:
    """Return what the bot itself says about the end of an action, without what a tool returned.

    `report`: what the store knows of the steps of a plan, or of an undo; "" for nothing.
    `possible_reasons`: the action and, of a plan, its steps. Each of them may be the reason why a
    yes was refused.
    """
    action = stored.action
    texts = texts_for(action.language)
    # A refused yes ran no tool: the refusal is all that the user read.
    if stored.state == "failed":
        refusals = (_refusal_in(outcome_text, each) for each in possible_reasons)
        refusal = next(filter(None, refusals), "")
        if refusal:
            return refusal
    if report:
        return report
    if action.kind == PLAN_KIND or stored.state == "unknown":
        first_line, _, _ = outcome_text.partition("\n")
        return first_line
    if stored.state == "done":
        return texts.done(action.preview, "")
    return texts.failed(action.preview)


def action_ids(stored: StoredAction) -> frozenset[str]:
    """Return the id of an action and, of a plan, those of its steps."""
    ids = {stored.action_id}
    if stored.action.kind == PLAN_KIND:
        ids.update(step_ids(stored.action))
    return frozenset(ids)


def links_in_history(context: TurnContext) -> Iterator[ActionLink]:
    """Yield the links of all results in the history."""
    return chain.from_iterable(message.actions for message in context.memory.get_history())


def _may_change(message: Message) -> bool:
    """Return whether a message has a link to an action whose outcome may still change."""
    return not all(link.is_final for link in message.actions)


def _ended_link(link: ActionLink, ended: Mapping[str, ActionLink]) -> ActionLink:
    """Return the link from `ended` for the same action; `link` if there is none or it is final."""
    if link.is_final or link.id not in ended:
        return link
    return replace(ended[link.id], arguments=link.arguments)


def _open_link(link: ActionLink) -> ActionLink:
    """Return the link to an action whose outcome is not known."""
    return ActionLink(link.id, arguments=link.arguments)


def _linked_to_successor(link: ActionLink, successors: Mapping[str, PendingAction]) -> ActionLink:
    """Return the link to the action after the change; `link` itself if there was no change."""
    action = successors.get(link.id)
    if action is None:
        return link
    arguments = action.args if action.changes_of else None
    return replace(link, id=action.pending_action_id, arguments=arguments)


def _linked_to_undo(link: ActionLink, undo_ids: Mapping[str, str]) -> ActionLink:
    """Return the link with the undo of its action. `undo_ids`: by the ids of the actions."""
    if link.id not in undo_ids:
        return link
    return replace(link, undo=undo_ids[link.id], is_final=False)


def _has_failed_undo(link: ActionLink) -> bool:
    """Return whether an undo of the action was tried and failed."""
    return bool(link.undo) and link.outcome == "done"


def _differ(links: Sequence[ActionLink], before: Sequence[ActionLink]) -> bool:
    """Return whether the content of a result must be written anew.

    An unknown outcome always is, because a note may have changed: its action may be running. So is
    an undo that failed.
    """
    if any(link.outcome == "unknown" or _has_failed_undo(link) for link in links):
        return True
    return [(link.outcome, link.at) for link in links] != [
        (link.outcome, link.at) for link in before
    ]


def _raw_text(stored: StoredAction) -> str:
    """Return what the tool returned, or why it failed; "" if it gave no text."""
    if stored.output or stored.result:
        return stored.output or stored.result
    without_result = texts_for(stored.action.language).done(stored.action.preview, "")
    if stored.outcome_text == without_result:
        return ""
    return stored.outcome_text


def _outcome_entry(link: ActionLink, words: str = "", decided_by: str = "") -> dict[str, Any]:
    """Return what the model reads of an outcome, without what a tool returned.

    `words`: what the person wrote who denied the action, "" for nothing. `decided_by`: who decided
    in place of the user, "" for the user.
    """
    is_refused_outside = link.outcome == "denied" and not link.at
    is_decided = link.outcome in _DECIDED and not is_refused_outside
    note = ""
    if is_refused_outside:
        note = _REFUSED
    elif link.outcome == "denied" and decided_by:
        note = _DENIED_BY_OTHERS
    return outcome_entry(
        link.outcome,
        words=words if link.outcome == "denied" else "",
        decided_by=(decided_by or "user") if is_decided else "",
        at=link.at,
        arguments=link.arguments,
        note=note,
    )


def _with_outcomes(
    message: Message, links: tuple[ActionLink, ...], entries: Sequence[dict[str, Any]]
) -> Message:
    """Return the result of a call with these links and, for each, what the model reads (`entries`).

    Without entries its content stays as it was: not all its actions have ended.
    """
    if not entries:
        return replace(message, actions=links)
    content = entries[0]
    if len(entries) > 1:
        outcome = _common_outcome([link.outcome for link in links])
        content = {"outcome": outcome, "actions": list(entries)}
    text = storable(json.dumps(content, ensure_ascii=False))
    with_outcome = replace(message, content=text, actions=links, text_file=None, full_text="")
    (result,) = shorten_for_history([with_outcome])
    return result


def _common_outcome(outcomes: Sequence[str]) -> str:
    """Return the outcome of several actions of one call.

    It is "failed" if some were done and others were not.
    """
    if len(set(outcomes)) == 1:
        return outcomes[0]
    return "unknown" if "unknown" in outcomes else "failed"
