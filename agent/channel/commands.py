"""Commands: what every channel answers by itself, without asking a model or deciding anything that waits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sayso.agent.agent import Agent
from sayso.agent.channel.context import TurnAnswer, TurnContext
from sayso.agent.channel.prompts import ClosedPrompts
from sayso.agent.guards.policy import effective_decision, is_always_denied
from sayso.agent.tools.preview import literal
from sayso.agent.tools.tool import Tool
from sayso.agent.toolsets.selectors import roles_in, would_show
from sayso.channels.i18n.invisible import readable
from sayso.channels.i18n.texts import texts_for
from sayso.channels.types import Reply, Turn
from sayso.pending.action import ActionState
from sayso.pending.proposals import ChannelRun, channel_run
from sayso.pending.repository import StoredAction
from sayso.pending.turns.change import Transition, TurnChange

#: In the order in which /help lists them. What stops a running turn is heard before it gets here.
LISTED = ("help", "tools", "status", "whoami", "reset", "stop")
#: Those that are answered here. Telegram sends /start when a person opens the bot.
ANSWERED = ("help", "tools", "status", "whoami", "reset", "start")
#: Tools that are listed at most, and characters of what is said of each.
MAX_TOOLS = 100
MAX_LINE_CHARS = 120


@dataclass(frozen=True, slots=True)
class Usable:
    """A tool that a person may use, and whether it asks them first."""

    tool: Tool
    asks: bool


class Commands:
    """The commands of one channel's agent. A tool of the same name goes first: it is its owner's."""

    def __init__(self, agent: Agent, prompts: ClosedPrompts) -> None:
        self._agent = agent
        self._prompts = prompts

    def named(self, turn: Turn) -> str:
        """The command that a turn is, whatever follows it; "" for none."""
        first, *_ = turn.text.split(maxsplit=1) or [""]
        name = first[1:].casefold() if first.startswith("/") else ""
        is_ours = name in ANSWERED and turn.decides and turn.tap is None
        return name if is_ours and name not in self._taken() else ""

    async def answer(self, name: str, case: TurnContext, run: ChannelRun) -> TurnAnswer:
        """What a command says and changes. The history does not hear of it."""
        with channel_run(run):
            match name:
                case "tools":
                    return _only(_tool_list(case, await self._usable()))
                case "status":
                    return _only("\n".join(_status(case)))
                case "whoami":
                    return _only("\n".join(_who(case, await roles_in(self._agent.selector))))
                case "reset":
                    return await self._reset(case)
            return _only(self._help(case, await self._usable()))

    def _taken(self) -> set[str]:
        return {tool.name.casefold() for tool in self._agent.tools}

    async def _usable(self) -> list[Usable]:
        """What whoever speaks now may use here. A selector that depends on what is said hides nothing from the list."""
        found = []
        for tool in self._agent.tools:
            if is_always_denied(tool, self._agent.config.tool_policy):
                continue
            decision = effective_decision(tool, {}, self._agent.config.tool_policy).decision
            if await would_show(self._agent.selector, tool) != "hidden":
                found.append(Usable(tool, decision == "review" or bool(tool.proposes)))
        return found

    def _help(self, case: TurnContext, usable: list[Usable]) -> str:
        words, taken = case.words, self._taken()
        lines = [f"- /{name}: {words.command(name)}" for name in LISTED if name not in taken]
        asking = [f"`{each.tool.name}`" for each in usable if each.asks]
        more = ["..."] if len(asking) > MAX_TOOLS else []
        first = words.asks_first(", ".join([*asking[:MAX_TOOLS], *more])) if asking else ""
        return "\n\n".join(filter(None, [words.help_intro(), "\n".join(lines), first]))

    async def _reset(self, case: TurnContext) -> TurnAnswer:
        """Forget the transcript, and cancel what waits. What other memories know, and reminders, stay."""
        case.memory.clear()
        done = case.words.reset_done()
        if case.waiting is None:
            return _only(done)
        state, told = _ended(case, case.waiting)
        move = Transition(case.waiting.pid, ("armed", "shown"), state, told, case.turn.event_id)
        closed = await self._prompts.closed(case.turn, case.waiting, state, told)
        return TurnAnswer(TurnChange(replies=(*closed, (Reply(f"{done}\n{told}"), "")), move=move))


def _ended(case: TurnContext, waiting: StoredAction) -> tuple[ActionState, str]:
    """How what waited ends with a reset, and what is said of it."""
    action = waiting.action
    words = texts_for(action.language)
    if action.is_expired(case.received_at):
        return "expired", words.expired(action.preview)
    return "cancelled", words.cancelled(action.preview)


def _tool_list(case: TurnContext, usable: list[Usable]) -> str:
    words = case.words
    if not usable:
        return words.no_tools()
    lines = [_tool_line(each, f" ({words.needs_yes()})" if each.asks else "") for each in usable[:MAX_TOOLS]]
    return "\n".join([*lines, *(["- ..."] if len(usable) > MAX_TOOLS else [])])


def _tool_line(each: Usable, mark: str) -> str:
    """A tool on one line: what is said of one from elsewhere is not ours."""
    first, *_ = readable(each.tool.description).strip().split("\n")
    return f"- `{each.tool.name}`{mark}: {first if len(first) <= MAX_LINE_CHARS else f'{first[:MAX_LINE_CHARS]}...'}"


def _who(case: TurnContext, roles: list[str]) -> Iterator[str]:
    """What an operator needs to know them by. A person without a role hears so."""
    turn, words = case.turn, case.words
    yield words.who("id", f"`{turn.user_id}`")
    if turn.user_name:
        yield words.who("name", literal(turn.user_name))
    yield words.who("channel", f"`{turn.conversation.channel}`")
    if roles:
        yield words.who("role", ", ".join(dict.fromkeys(role or "-" for role in roles)))
    if turn.aliases and not turn.in_group:  # one may be a phone number, which others need not read
        yield words.who("aliases", ", ".join(f"`{alias}`" for alias in turn.aliases))


def _status(case: TurnContext) -> Iterator[str]:
    """What is open, and for how long. Turns of a conversation come one by one: whoever hears this has no other running,
    but an action may be, that was confirmed elsewhere.
    """
    live, words = case.live, case.words
    if case.waiting and not case.waiting.action.is_expired(case.received_at):
        action = case.waiting.action
        left = action.expires_at - case.received_at if action.expires_at else action.ttl_seconds
        yield words.status_waiting(action.preview, left)
    elif live and live.state in ("claimed", "started"):
        yield words.status_running(live.action.preview)
    else:
        yield words.status_idle()
    for timer in case.timers:
        if timer.user == case.turn.scope.id:
            yield words.status_reminder(timer.note or timer.text, timer.at - case.received_at)


def _only(text: str) -> TurnAnswer:
    return TurnAnswer(TurnChange(replies=((Reply(text), ""),)))
