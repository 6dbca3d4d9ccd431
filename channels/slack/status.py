"""ConversationStatus: shows in a thread whether the bot works or waits, where Slack allows it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakValueDictionary

from sayso.channels.base import ShownState
from sayso.channels.slack.address import split_place
from sayso.channels.slack.client import error_code, reaction_to
from sayso.channels.types import Turn, one_line
from sayso.infra.http import retry_after

if TYPE_CHECKING:
    from slack_sdk.errors import SlackApiError
    from slack_sdk.web.async_client import AsyncWebClient

log = logging.getLogger(__name__)

STATUS = "is thinking…"
#: Seconds after which the status is shown again: Slack removes it after 2 minutes. Sessions work
#: for an hour.
STATUS_SECONDS = 100.0
#: Seconds for which no status is shown where Slack refused one. A refusal costs one call in this
#: time, or two with a title, and not one a turn. A scope that an operator adds is noticed without a
#: restart.
REFUSED_SECONDS = 900.0
#: The most characters of a session's title. Slack takes 200, and its lists show the first words.
MAX_TITLE_CHARS = 60
#: How many threads of a workspace Slack refuses in a row until the app is taken to have no sessions
#: there.
MAX_REFUSED_THREADS = 3
#: The most chats whose refusal is remembered.
MAX_CHATS = 10_000
#: The most threads whose state is remembered.
MAX_THREADS = 10_000
#: The most states that wait because Slack asked to wait.
MAX_LATER = 1_000
#: How often each of them is tried.
MAX_TRIES = 5
#: What Slack adds to its answer while the app does not subscribe to the event of the stop button.
NO_STOP_BUTTON = "missing_agent_session_stopped_event_subscription"
#: Error codes that concern the app wherever it is. Besides them,
#: those of a token and of its scopes.
_APP_ERRORS = frozenset(
    {
        "unknown_method",
        "method_deprecated",
        "deprecated_endpoint",
        "feature_not_enabled",
        "feature_disabled",
        "not_allowed",
        "access_denied",
        "accesslimited",
        "team_access_not_granted",
        "ekm_access_denied",
        "enterprise_is_restricted",
        "not_agent_app",
        "not_authorized",
    }
)
#: What follows from errors that concern a chat, whatever the thread.
_CHAT_REACTIONS = ("closed", "chat_barred")
#: How a call ended: Slack took it, asks to call later, refuses it here, or the call failed.
StatusOutcome = Literal["taken", "later", "refused", "failed"]
#: A chat and the ts of a thread's first message, or of another message for the older status.
StatusPlace = tuple[str, str]


class ConversationStatus:
    """The status of one app's threads. Lives as long as its channel.

    Apps with the agent view have sessions, one for each thread (`agents.sessions.setStatus`):
    "Working…" with a stop button, suspended while a question waits, active, closed. A message ends
    no state, so each is ended by another. Where Slack refuses sessions, and in other apps, "is
    thinking…" is shown (`assistant.threads.setStatus`), which works at any message and ends with a
    reply in the thread. Both need the scope chat:write alone.
    """

    def __init__(
        self,
        channel: str,
        client_of: Callable[[str], Awaitable[AsyncWebClient]],
        *,
        has_sessions: bool = False,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._channel = channel
        self._client_of = client_of
        self._has_sessions = has_sessions
        self._sleep = sleep
        self._sessions = Refusals(channel, "agents.sessions.setStatus", clock, by_thread=True)
        self._statuses = Refusals(channel, "assistant.threads.setStatus", clock)
        #: Keeps the calls for one message in their order: a status that is
        #: shown after its removal would stay.
        self._locks: WeakValueDictionary[StatusPlace, asyncio.Lock] = WeakValueDictionary()
        #: The event id of the newest turn in each thread. What an earlier one leads to changes
        #: nothing.
        self._turns: OrderedDict[StatusPlace, str] = OrderedDict()
        #: The threads that Slack shows as working because of this process.
        self._working: OrderedDict[StatusPlace, None] = OrderedDict()
        #: The states that Slack is to be told later.
        self._later: dict[StatusPlace, asyncio.Task[None]] = {}
        self._misses_stop_button = False

    def begin(self, chat: str, ts: str, event_id: str) -> None:
        """Note that a turn begins in a thread, without showing it.

        The states that earlier turns led to are outdated.
        """
        _remember(self._turns, (chat, ts), event_id)
        task = self._later.pop((chat, ts), None)
        if task:
            task.cancel()

    async def show(self, chat: str, ts: str, event_id: str = "", *, title: str = "") -> float:
        """Show at the message `ts`, a thread's first one or any other, that a turn is under work.

        `title`: what a new session is called. Slack ignores it where there is one.

        Returns the seconds after which it must be shown again, 0 for never. Best effort; never
        raises.
        """
        self.begin(chat, ts, event_id)
        async with self._lock(chat, ts):
            if self._uses_sessions(chat, ts):
                outcome = await self._set_session(chat, ts, "processing", title)
                if outcome == "taken":
                    _remember(self._working, (chat, ts), None)
                if outcome != "refused":
                    return 0.0
            outcome = await self._set_status(chat, ts, STATUS)
            return STATUS_SECONDS if outcome == "taken" else 0.0

    async def remove(self, chat: str, ts: str) -> None:
        """Remove "is thinking…" from the message `ts`, unless its thread has a session.

        Best effort; never raises.
        """
        if not self._uses_sessions(chat, ts):
            async with self._lock(chat, ts):
                await self._set_status(chat, ts, "")

    async def show_state(self, chat: str, ts: str, state: ShownState, *, after: str = "") -> None:
        """Show what the thread waits for now, if it has a session. Best effort; never raises.

        `after`: the event id of the turn that led to it. A state that Slack does not take now is
        told later, since a thread that goes on "working" has a stop button for an hour.
        """
        async with self._lock(chat, ts):
            is_outdated = after and self._turns.get((chat, ts), after) != after
            is_working = (chat, ts) in self._working
            if is_outdated or not (is_working or self._uses_sessions(chat, ts)):
                return
            # Slack asked to wait, and nothing that this state would end was shown.
            if self._sessions.of(chat, ts) == "later" and state == "active" and not is_working:
                return
            outcome = await self._set_session(chat, ts, state)
            if outcome == "later":
                self._set_later(chat, ts, state)

    def _lock(self, chat: str, ts: str) -> asyncio.Lock:
        return self._locks.setdefault((chat, ts), asyncio.Lock())

    def _uses_sessions(self, chat: str, ts: str) -> bool:
        return self._has_sessions and self._sessions.of(chat, ts) != "refused"

    async def _set_session(
        self, chat: str, ts: str, state: ShownState, title: str = ""
    ) -> StatusOutcome:
        """Set the state of a thread's session unless Slack refused that lately.

        The end of what this process shows as working is tried in any case.
        """
        known = self._sessions.of(chat, ts)
        if known == "later" or (known and (chat, ts) not in self._working):
            return known

        async def call(client: AsyncWebClient, channel_id: str) -> Any:
            from slack_sdk.errors import SlackApiError

            set_status = partial(
                client.agents_sessions_setStatus,
                channel_id=channel_id,
                thread_ts=ts,
                status=state,
            )
            if not title:
                return await set_status()
            try:
                return await set_status(title=title)
            except SlackApiError as exc:
                if self._sessions.scope_of(exc) != "thread":
                    raise
            # Slack may refuse the title alone. The state is worth more.
            return await set_status()

        outcome, answer = await self._call(chat, ts, self._sessions, call)
        if outcome == "refused" or (outcome == "taken" and state != "processing"):
            self._working.pop((chat, ts), None)
        misses_button = answer is not None and NO_STOP_BUTTON in str(answer.data)
        if misses_button and not self._misses_stop_button:
            self._misses_stop_button = True
            log.warning("status.no_stop_button", extra={"channel": self._channel})
        return outcome

    async def _set_status(self, chat: str, ts: str, status: str) -> StatusOutcome:
        """Set "is thinking…", or remove it with "", unless Slack refused that lately."""
        known = self._statuses.of(chat, ts)
        if known:
            return known

        async def call(client: AsyncWebClient, channel_id: str) -> Any:
            return await client.assistant_threads_setStatus(
                channel_id=channel_id,
                thread_ts=ts,
                status=status,
            )

        outcome, _ = await self._call(chat, ts, self._statuses, call)
        return outcome

    async def _call(
        self,
        chat: str,
        ts: str,
        refusals: Refusals,
        call: Callable[[AsyncWebClient, str], Awaitable[Any]],
    ) -> tuple[StatusOutcome, Any]:
        """Call one of the two methods, and remember a refusal.

        Return the outcome and Slack's answer.
        """
        from slack_sdk.errors import SlackApiError

        try:
            answer = await call(await self._client_of(chat), split_place(chat).id)
            refusals.note_taken(chat)
            return "taken", answer
        except SlackApiError as exc:
            return refusals.learn(chat, ts, exc), None
        except Exception:  # noqa: BLE001  # best effort: the network, or an unreadable answer
            return "failed", None

    def _set_later(self, chat: str, ts: str, state: ShownState) -> None:
        """Set the state in the background when Slack takes calls again.

        A turn that begins before ends the attempt.
        """
        if (chat, ts) in self._later or len(self._later) < MAX_LATER:
            earlier = self._later.pop((chat, ts), None)
            if earlier:
                earlier.cancel()
            self._later[chat, ts] = asyncio.create_task(self._keep_setting(chat, ts, state))

    async def _keep_setting(self, chat: str, ts: str, state: ShownState) -> None:
        for _ in range(MAX_TRIES):
            await self._sleep(self._sessions.seconds_left(chat, ts))
            async with self._lock(chat, ts):
                if await self._set_session(chat, ts, state) != "later":
                    break
        if self._later.get((chat, ts)) is asyncio.current_task():
            del self._later[chat, ts]


class Refusals:
    """Remembers where Slack refuses one of its methods, and until when.

    Lives as long as its status. `by_thread`: a refusal whose code names neither the app nor the
    chat concerns one thread. Without threads each message would be refused anew. Slack lists no
    codes of an app without sessions, so several such refusals in a row concern the app.
    """

    def __init__(
        self,
        channel: str,
        method: str,
        clock: Callable[[], float],
        *,
        by_thread: bool = False,
    ) -> None:
        self._channel = channel
        self._method = method
        self._clock = clock
        self._by_thread = by_thread
        #: How many threads Slack has refused since it took a call, by workspace.
        self._refused_threads: Counter[str] = Counter()
        #: Until when, and why, by chat or thread. The id of a workspace stands for all of its
        #: chats, "" without one.
        self._until: dict[str, tuple[float, Literal["later", "refused"]]] = {}

    def of(self, chat: str, ts: str) -> Literal["", "later", "refused"]:
        """Return "later" where Slack asked to wait, "refused" where it refused a call lately."""
        now = self._clock()
        kinds = [kind for until, kind in self._known(chat, ts) if now < until]
        if not kinds:
            return ""
        return "refused" if "refused" in kinds else "later"

    def seconds_left(self, chat: str, ts: str) -> float:
        """Return the seconds until a call may be made, 0 for now."""
        return max(0.0, *(until - self._clock() for until, _ in self._known(chat, ts)), 0.0)

    def _known(self, chat: str, ts: str) -> list[tuple[float, Literal["later", "refused"]]]:
        places = (split_place(chat).team, chat, _thread_place(chat, ts))
        return [self._until[place] for place in places if place in self._until]

    def note_taken(self, chat: str) -> None:
        """Note that Slack took a call in a chat."""
        self._refused_threads.pop(split_place(chat).team, None)

    def learn(self, chat: str, ts: str, error: SlackApiError) -> StatusOutcome:
        """Remember a refusal, of the app in a workspace, of one chat or of one thread.

        Return what became of the call.

        A fault of Slack's own says nothing of the next call. Slack limits the calls of a workspace.
        """
        scope = self.scope_of(error)
        if not scope:
            return "failed"
        seconds = REFUSED_SECONDS
        outcome: Literal["later", "refused"] = "refused"
        if _is_limited(error):
            seconds = retry_after(error.response.headers)
            outcome = "later"
        if len(self._until) >= MAX_CHATS:
            self._until.clear()
        team = split_place(chat).team
        if scope == "thread":
            self._refused_threads[team] += 1
            if self._refused_threads[team] >= MAX_REFUSED_THREADS:
                scope = "app"
        places = {"app": team, "chat": chat, "thread": _thread_place(chat, ts)}
        self._until[places[scope]] = (self._clock() + seconds, outcome)
        extra = {
            "channel": self._channel,
            "method": self._method,
            "reason": error_code(error.response) or _http_status(error),
            "seconds": seconds,
            "everywhere": scope == "app",
        }
        log.info("status.refused", extra=extra)
        return outcome

    def scope_of(self, error: SlackApiError) -> Literal["", "app", "chat", "thread"]:
        """Return what a refusal concerns by its code; "" for a fault of Slack's own."""
        code = error_code(error.response)
        reaction = reaction_to(code)
        if _is_limited(error):
            return "app"
        if reaction == "unclear" or _http_status(error) >= 500 or not code:
            return ""
        if code in _APP_ERRORS or reaction in ("down", "scope"):
            return "app"
        if self._by_thread and reaction not in _CHAT_REACTIONS:
            return "thread"
        return "chat"


def _is_limited(error: SlackApiError) -> bool:
    """Return whether Slack asks to call later."""
    return reaction_to(error_code(error.response)) == "wait" or _http_status(error) == 429


def _http_status(error: SlackApiError) -> int:
    """Return the HTTP status of an error, 0 if it is not known.

    The SDK passes on aiohttp's response, with another name for its status, if it could not read the
    body.
    """
    response = error.response
    return int(getattr(response, "status_code", 0) or getattr(response, "status", 0))


def title_of(turn: Turn) -> str:
    """Return the first words of a message, or else the name of its file, as the title of a session.

    Angle brackets are left out: at Slack they begin a mention or a link. So are characters that
    people cannot see: one that turns the direction would show a list of threads wrongly, and Slack
    refuses a title of nothing else. A tap has no title.
    """
    if turn.tap is not None:
        return ""
    text = turn.text
    if not text and turn.media:
        text = turn.media[0].filename
    words_on_one_line = " ".join(text.replace("<", " ").replace(">", " ").split())
    text = " ".join(one_line(words_on_one_line).split())
    if len(text) <= MAX_TITLE_CHARS:
        return text
    cut = text[: MAX_TITLE_CHARS - 1]
    words, space, _ = cut.rpartition(" ")
    # A cut word is left out, unless there is no other, as in languages without spaces.
    if space and len(words) > MAX_TITLE_CHARS // 2:
        cut = words
    return f"{cut.rstrip()}…"


def _thread_place(chat: str, ts: str) -> str:
    return f"{chat} {ts}"


def _remember(known: OrderedDict[StatusPlace, Any], place: StatusPlace, value: Any) -> None:
    """Store a value as the newest, and forget the oldest ones beyond MAX_THREADS."""
    known[place] = value
    known.move_to_end(place)
    while len(known) > MAX_THREADS:
        known.popitem(last=False)
