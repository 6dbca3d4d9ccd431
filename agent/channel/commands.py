"""Commands: /help, /tools, /status, /whoami, /revoke and /reset, answered without a model."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sayso.agent.agent import Agent
from sayso.agent.channel.approval_answers import ApprovalAnswers
from sayso.agent.channel.approval_questions import names_of_asked_about
from sayso.agent.channel.context import (
    TurnAnswer,
    TurnContext,
    about_question,
    paragraphs,
    text_change,
)
from sayso.agent.channel.endings import cancelled_or_expired_transition
from sayso.agent.channel.outcome_history import OutcomeHistory
from sayso.agent.channel.people_commands import PeopleCommands, absence_lines
from sayso.agent.channel.questions import Questions
from sayso.agent.guards.policy import effective_decision, effective_standing
from sayso.agent.tools.previews import literal
from sayso.agent.tools.tool import Tool
from sayso.agent.toolsets.selectors import roles_in, would_show
from sayso.channels.i18n.invisible import readable
from sayso.channels.i18n.texts import texts_for
from sayso.channels.markdown.literal import Markdown
from sayso.channels.types import Reply, Turn
from sayso.pending.approvals.linking import account_names
from sayso.pending.approvals.people import DirectoryUnavailable, KnownPerson, PeopleDirectory
from sayso.pending.approvals.requests import RequestedAction
from sayso.pending.standing_yes import StandingRevocation, StandingYes, load_standing_yeses
from sayso.pending.store import PendingActionStore
from sayso.pending.stored_action import StoredAction
from sayso.pending.turn_changes import TurnChange, TurnReply

log = logging.getLogger(__name__)

#: The commands in the order of /help. /stop is handled before a turn gets here.
LISTED = ("help", "tools", "status", "whoami", "revoke", "reset", "stop")
#: The commands that are answered here. Telegram sends /start when a person opens the bot.
ANSWERED = ("help", "tools", "status", "whoami", "revoke", "reset", "start")
#: The most tools that a list names.
MAX_TOOLS = 100
#: The most characters of a tool's description in a list.
MAX_LINE_CHARS = 120


@dataclass(frozen=True, slots=True)
class _UsableTool:
    """A tool that the user may use."""

    tool: Tool
    #: Whether it asks the user for a yes first.
    asks: bool


class Commands:
    """The commands of one channel. A command is disabled if a tool has the same name.

    Lives as long as its agent. The answers are not added to the history.
    """

    def __init__(
        self,
        agent: Agent,
        store: PendingActionStore,
        questions: Questions,
        *,
        outcomes: OutcomeHistory,
        requests: ApprovalAnswers,
        people: PeopleDirectory,
        people_commands: PeopleCommands | None = None,
    ) -> None:
        """`people_commands`: the commands of people about themselves; None for none."""
        self._agent = agent
        self._store = store
        self._questions = questions
        self._outcomes = outcomes
        self._requests = requests
        self._people = people
        self._people_commands = people_commands

    def find(self, turn: Turn) -> str:
        """Return the command that a turn begins with, without its slash; "" for none."""
        # A caption, a transcript or an edit decides nothing (`Turn.decides`), so it is no command
        # either. The text of a tap is that of a button, which people did not type.
        if not turn.decides or turn.tap:
            return ""
        words = turn.text.split()
        if not words or not words[0].startswith("/"):
            return ""
        name = words[0].removeprefix("/").casefold()
        is_command = name in ANSWERED
        if self._people_commands and self._people_commands.knows(name, words[1:]):
            is_command = True
        if not is_command or name in self._tool_names():
            return ""
        return name

    async def answer(self, name: str, context: TurnContext) -> TurnAnswer:
        """Return the answer to the command of this name, as `find` returns it."""
        match name:
            case "tools":
                return _text_answer(_tool_list(context, await self._usable()))
            case "status":
                others = await self._outcomes.waiting_for_others(context)
                lines = [
                    *_status(context, others, await self._requests.open_requests(context)),
                    *_standing_lines(context, await self._standing(context)),
                    *await self._absence_lines(context),
                ]
                answer = _text_answer("\n".join(lines))
                if context.waiting_action:
                    answer = about_question(context.waiting_action, answer)
                return answer
            case "whoami":
                roles = await roles_in(self._agent.selector)
                person = await self._person_of(context.turn)
                return _text_answer("\n".join(_who(context, roles, person)))
            case "revoke":
                return await self._revoke(context)
            case "reset":
                return await self._reset(context)
        if self._people_commands and name in self._people_commands.names:
            return _text_answer(await self._people_commands.answer(name, context))
        return _text_answer(self._help(context, await self._usable()))

    async def _person_of(self, turn: Turn) -> KnownPerson | None:
        """Return the sender of a turn, None while a platform does not say who is in a group."""
        ids = (turn.user_id, *turn.aliases)
        try:
            return await self._people.person_of(turn.conversation.channel, ids)
        except DirectoryUnavailable as exc:
            log.warning("people.unavailable", extra={"reason": str(exc)})
            return None

    async def _absence_lines(self, context: TurnContext) -> list[str]:
        """Return until when the sender is away; [] if they are not, or cannot say so here."""
        if self._people_commands is None:
            return []
        person = await self._person_of(context.turn)
        if person is None:
            return []
        return list(absence_lines(context.texts, person))

    def _tool_names(self) -> set[str]:
        return {tool.name.casefold() for tool in self._agent.tools}

    async def _usable(self) -> list[_UsableTool]:
        """Return the tools that the user may use.

        What a selector would hide because of the words of a message is in the list, too.
        """
        usable = []
        policy = self._agent.config.tool_policy
        tools = self._agent.tools
        if policy is not None:
            tools = policy.without_denied(tools)
        for tool in tools:
            decision = effective_decision(tool, {}, policy).decision
            asks = decision == "review" or bool(tool.proposes)
            if await would_show(self._agent.selector, tool) != "hidden":
                usable.append(_UsableTool(tool, asks))
        return usable

    def _help(self, context: TurnContext, usable: Sequence[_UsableTool]) -> str:
        """Return what the bot is, its commands, and which tools ask first."""
        texts = context.texts
        tool_names = self._tool_names()
        names: tuple[str, ...] = LISTED
        if self._people_commands:
            names = (*LISTED, *self._people_commands.names)
        policy = self._agent.config.tool_policy
        hidden_names = set(tool_names)
        if not any(effective_standing(each.tool, policy) for each in usable):
            hidden_names.add("revoke")
        lines = [f"- /{name}: {texts.command(name)}" for name in names if name not in hidden_names]

        asking = [f"`{each.tool.name}`" for each in usable if each.asks]
        if len(asking) > MAX_TOOLS:
            asking = [*asking[:MAX_TOOLS], "..."]
        asks_first = ""
        if asking:
            asks_first = texts.asks_first(", ".join(asking))
        return paragraphs([texts.help_intro(), "\n".join(lines), asks_first])

    async def _standing(self, context: TurnContext) -> list[StandingYes]:
        """Return the standing yeses of the person here, in the order of /status."""
        store = self._store
        return await load_standing_yeses(
            store.repository, store.signer, context.turn.scope, context.received_at
        )

    async def _revoke(self, context: TurnContext) -> TurnAnswer:
        """End all standing yeses of the person here, or the one with the number of /status.

        Without a number that /status has, all are ended: a person who wants an end gets one.
        """
        texts = context.texts
        yeses = await self._standing(context)
        # All are ended, also one that is not listed because its record was changed.
        revokes = StandingRevocation(context.scope_id)
        number = context.turn.text.split()[1:2]
        chosen = [yes for at, yes in enumerate(yeses, start=1) if number == [str(at)]]
        if chosen:
            revokes = StandingRevocation(context.scope_id, (chosen[0].id,))
            text = texts.standing_revoked(chosen[0].preview)
        elif yeses:
            text = texts.standing_all_revoked(len(yeses))
        else:
            text = texts.standing_none()
        log.info("standing.revoked", extra={"count": len(revokes.ids) or len(yeses)})
        return _text_answer(text).with_changes(revokes=revokes)

    async def _reset(self, context: TurnContext) -> TurnAnswer:
        """Clear the history, cancel the pending action and end all standing yeses.

        Other memories and reminders are kept.
        """
        context.memory.clear()
        done = context.texts.reset_done()
        stored = context.waiting_action
        revokes = StandingRevocation(context.scope_id)
        if stored is None:
            return _text_answer(done).with_changes(ends_conversation=True, revokes=revokes)

        cancelled = texts_for(stored.action.language).cancelled(stored.action.preview)
        transition = cancelled_or_expired_transition(context, stored, cancelled)
        outcome = transition.outcome_text
        closing_replies = await self._questions.close(context.turn, stored, transition.to, outcome)
        replies = (*closing_replies, TurnReply(Reply(f"{done}\n{outcome}")))
        change = TurnChange(
            replies=replies, transition=transition, revokes=revokes, ends_conversation=True
        )
        return TurnAnswer(change)


def _tool_list(context: TurnContext, usable: Sequence[_UsableTool]) -> str:
    """Return the answer to /tools: a line for each tool."""
    texts = context.texts
    if not usable:
        return texts.no_tools()
    lines: list[str] = []
    for each in usable[:MAX_TOOLS]:
        first_line, *_ = readable(each.tool.description).strip().split("\n")
        if len(first_line) > MAX_LINE_CHARS:
            first_line = f"{first_line[:MAX_LINE_CHARS]}..."
        note = f" ({texts.needs_yes()})" if each.asks else ""
        # A remote source may have written the description, so nothing in it counts as Markdown.
        lines.append(f"- `{each.tool.name}`{note}: {literal(first_line)}")
    if len(usable) > MAX_TOOLS:
        lines.append("- ...")
    return "\n".join(lines)


def _who(
    context: TurnContext, selector_roles: Sequence[str], person: KnownPerson | None
) -> Iterator[str]:
    """Yield the lines of /whoami: what identifies the user to an operator.

    * `selector_roles`: the roles by which tools are shown. A user without a role sees a dash.
    * `person`: the user with all accounts and roles; None while these are not known.
    """
    turn = context.turn
    texts = context.texts
    yield texts.who("id", f"`{turn.user_id}`")
    if turn.user_name:
        yield texts.who("name", literal(turn.user_name))
    yield texts.who("channel", f"`{turn.conversation.channel}`")
    names = {role.lower(): literal(role) or "-" for role in selector_roles}
    if person:
        names = {role: literal(role) for role in sorted(person.roles)} | names
        # The dash of a selector: it says nothing beside a role.
        if person.roles:
            names.pop("", None)
    if names:
        yield texts.who("role", ", ".join(names.values()))
    # An alias may be a phone number, which others must not see.
    if turn.aliases and not turn.in_group:
        yield texts.who("aliases", ", ".join(f"`{alias}`" for alias in turn.aliases))
    if person and len(person.accounts) > 1 and not turn.in_group:
        yield texts.who("accounts", account_names(person.accounts))


def _status(
    context: TurnContext, others: Sequence[StoredAction], requests: Sequence[StoredAction]
) -> Iterator[str]:
    """Yield the lines of /status: what is open and for how long.

    * `others`: the actions of this person that wait for the decision of other people.
    * `requests`: what other people ask this person to decide.

    Turns of a conversation run one at a time, so no other turn can be running. An action that was
    confirmed elsewhere can.
    """
    texts = context.texts
    stored = context.open_action
    waiting = context.waiting_action
    if waiting is not None and not waiting.action.is_expired(context.received_at):
        # The time to answer begins once the question was delivered.
        seconds_left = waiting.action.ttl_seconds
        if waiting.action.expires_at:
            seconds_left = waiting.action.expires_at - context.received_at
        yield texts.status_waiting(waiting.action.preview, seconds_left)
    elif stored and stored.state in ("claimed", "started"):
        yield texts.status_running(stored.action.preview)
    elif not others and not requests:
        yield texts.status_idle()

    for each in others:
        seconds_left = each.action.expires_at - context.received_at
        yield texts.status_others(each.action.preview, names_of_asked_about(each), seconds_left)

    for each in requests:
        seconds_left = each.action.expires_at - context.received_at
        code = RequestedAction.of(each.action).code
        yield texts.request_reminder(each.action.preview, code, seconds_left)

    for timer in context.timers:
        if timer.user == context.scope_id:
            seconds_left = timer.at - context.received_at
            yield texts.status_reminder(timer.note or Markdown(timer.text), seconds_left)


def _standing_lines(context: TurnContext, yeses: Sequence[StandingYes]) -> Iterator[str]:
    """Yield the lines of /status about standing yeses, with the numbers that /revoke takes."""
    for number, yes in enumerate(yeses, start=1):
        yield context.texts.status_standing(
            number, yes.preview, len(yes.used), yes.times, yes.expires_at
        )


def _text_answer(text: str) -> TurnAnswer:
    return TurnAnswer(text_change(text))
