"""Commands: /help, /tools, /status, /whoami and /reset, answered without a model."""

from __future__ import annotations

from collections.abc import Iterator

from sayso.agent.agent import Agent
from sayso.agent.channel.context import (
    TurnAnswer,
    TurnContext,
    about_question,
    paragraphs,
    text_change,
)
from sayso.agent.channel.endings import ended_transition
from sayso.agent.channel.questions import Questions
from sayso.agent.guards.policy import effective_decision
from sayso.agent.tools.call_texts import literal
from sayso.agent.tools.tool import Tool
from sayso.agent.toolsets.selectors import roles_in, would_show
from sayso.channels.i18n.invisible import readable
from sayso.channels.i18n.texts import texts_for
from sayso.channels.markdown.literal import Markdown
from sayso.channels.types import Reply, Turn
from sayso.pending.turns import TurnChange

#: The commands in the order of /help. /stop is handled before a turn gets here.
LISTED = ("help", "tools", "status", "whoami", "reset", "stop")
#: The commands that are answered here. Telegram sends /start when a person opens the bot.
ANSWERED = ("help", "tools", "status", "whoami", "reset", "start")
#: The largest number of tools in a list, and the characters of each description.
MAX_TOOLS = 100
MAX_LINE_CHARS = 120


class Commands:
    """The commands of one channel. A command is disabled if a tool has the same name."""

    def __init__(self, agent: Agent, questions: Questions) -> None:
        self._agent = agent
        self._questions = questions

    def find(self, turn: Turn) -> str:
        """Return the command that a turn begins with; "" for none."""
        first, *_ = turn.text.split(maxsplit=1) or [""]
        if not first.startswith("/") or not turn.decides or turn.tap:
            return ""
        name = first[1:].casefold()
        if name not in ANSWERED or name in self._tool_names():
            return ""
        return name

    async def answer(self, name: str, context: TurnContext) -> TurnAnswer:
        """Return the answer to a command. It is not added to the history."""
        match name:
            case "tools":
                return _text_answer(_tool_list(context, await self._usable()))
            case "status":
                answer = _text_answer("\n".join(_status(context)))
                if context.waiting_action:
                    answer = about_question(context.waiting_action, answer)
                return answer
            case "whoami":
                return _text_answer("\n".join(_who(context, await roles_in(self._agent.selector))))
            case "reset":
                return await self._reset(context)
        return _text_answer(self._help(context, await self._usable()))

    def _tool_names(self) -> set[str]:
        return {tool.name.casefold() for tool in self._agent.tools}

    async def _usable(self) -> list[tuple[Tool, bool]]:
        """Return the tools that the user may use, and whether each asks first.

        A selector that depends on the message hides nothing here.
        """
        usable = []
        policy = self._agent.config.tool_policy
        for tool in policy.without_denied(self._agent.tools) if policy else self._agent.tools:
            decision = effective_decision(tool, {}, policy).decision
            if await would_show(self._agent.selector, tool) != "hidden":
                usable.append((tool, decision == "review" or bool(tool.proposes)))
        return usable

    def _help(self, context: TurnContext, usable: list[tuple[Tool, bool]]) -> str:
        texts = context.texts
        tool_names = self._tool_names()
        lines = [f"- /{name}: {texts.command(name)}" for name in LISTED if name not in tool_names]
        asking = [f"`{tool.name}`" for tool, asks in usable if asks]
        asks_first = ""
        if asking:
            more = ["..."] if len(asking) > MAX_TOOLS else []
            asks_first = texts.asks_first(", ".join([*asking[:MAX_TOOLS], *more]))
        return paragraphs([texts.help_intro(), "\n".join(lines), asks_first])

    async def _reset(self, context: TurnContext) -> TurnAnswer:
        """Clear the history and cancel the pending action.

        Other memories and reminders are kept.
        """
        context.memory.clear()
        done = context.texts.reset_done()
        if context.waiting_action is None:
            return _text_answer(done).changed(ends_conversation=True)
        action = context.waiting_action.action
        cancelled = texts_for(action.language).cancelled(action.preview)
        transition = ended_transition(context, context.waiting_action, cancelled)
        outcome = transition.outcome_text
        closed = await self._questions.close(
            context.turn, context.waiting_action, transition.to, outcome
        )
        replies = (*closed, (Reply(f"{done}\n{outcome}"), ""))
        change = TurnChange(replies=replies, transition=transition, ends_conversation=True)
        return TurnAnswer(change)


def _tool_list(context: TurnContext, usable: list[tuple[Tool, bool]]) -> str:
    texts = context.texts
    if not usable:
        return texts.no_tools()
    lines: list[str] = []
    for tool, asks in usable[:MAX_TOOLS]:
        # A remote source may have written the description, so nothing in it is Markdown.
        first, *_ = readable(tool.description).strip().split("\n")
        if len(first) > MAX_LINE_CHARS:
            first = f"{first[:MAX_LINE_CHARS]}..."
        note = f" ({texts.needs_yes()})" if asks else ""
        lines.append(f"- `{tool.name}`{note}: {literal(first)}")
    if len(usable) > MAX_TOOLS:
        lines.append("- ...")
    return "\n".join(lines)


def _who(context: TurnContext, roles: list[str]) -> Iterator[str]:
    """Yield what identifies the user to an operator. A user without a role sees a dash."""
    turn = context.turn
    texts = context.texts
    yield texts.who("id", f"`{turn.user_id}`")
    if turn.user_name:
        yield texts.who("name", literal(turn.user_name))
    yield texts.who("channel", f"`{turn.conversation.channel}`")
    if roles:
        names = [literal(role) or "-" for role in dict.fromkeys(roles)]
        yield texts.who("role", ", ".join(names))
    # An alias may be a phone number, which others must not see.
    if turn.aliases and not turn.in_group:
        yield texts.who("aliases", ", ".join(f"`{alias}`" for alias in turn.aliases))


def _status(context: TurnContext) -> Iterator[str]:
    """Yield what is open and for how long.

    Turns of a conversation run one at a time, so no other turn is running;
    an action confirmed elsewhere may be.
    """
    stored = context.open_action
    texts = context.texts
    if context.waiting_action and not context.waiting_action.action.is_expired(context.received_at):
        action = context.waiting_action.action
        if action.expires_at:
            left = action.expires_at - context.received_at
        else:
            left = action.ttl_seconds
        yield texts.status_waiting(action.preview, left)
    elif stored and stored.state in ("claimed", "started"):
        yield texts.status_running(stored.action.preview)
    else:
        yield texts.status_idle()
    for timer in context.timers:
        if timer.user == context.user:
            yield texts.status_reminder(
                timer.note or Markdown(timer.text), timer.at - context.received_at
            )


def _text_answer(text: str) -> TurnAnswer:
    return TurnAnswer(text_change(text))
