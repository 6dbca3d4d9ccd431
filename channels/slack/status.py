"""ConversationStatus: shows in a thread whether the bot works or waits, where Slack allows it.

Slack has two methods for this:

* Apps with the agent view have sessions, one for each thread (`agents.sessions.setStatus`):
  "Working…" with a stop button, suspended while a question waits, active, or closed. A session
  keeps its state until another one is set: a message does not end it.
* Other apps, and apps whose sessions Slack refuses, show "is thinking…" at a message
  (`assistant.threads.setStatus`). It ends by itself after 2 minutes, or with a reply in the thread.

A status is worth little: no failure here may stop a turn, so nothing raises. Where Slack refused a
method, the method is not called again for a while.
"""

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
from sayso.channels.types import Turn, without_invisible
from sayso.infra.http import retry_after

if TYPE_CHECKING:
    from slack_sdk.errors import SlackApiError
    from slack_sdk.web.async_client import AsyncWebClient

log = logging.getLogger(__name__)

STATUS = "is thinking…"
#: Seconds after which "is thinking…" is shown again, since Slack removes it after 2 minutes. A
#: session may work for an hour.
STATUS_SECONDS = 100.0
#: Seconds for which no status is shown where Slack refused one. A refusal costs one call in this
#: time, or two with a title, and not one a turn. A scope that an operator adds is noticed without a
#: restart.
REFUSED_SECONDS = 900.0
#: The most characters of a session's title. Slack takes 200, and its lists show the first words.
MAX_TITLE_CHARS = 60
#: After how many threads of a workspace that Slack refused in a row the app counts as one without
#: sessions there.
MAX_REFUSED_THREADS = 3
#: The most chats and threads whose refusal is remembered.
MAX_REFUSALS = 10_000
#: The most threads whose newest turn is remembered.
MAX_THREADS = 10_000
#: The most states that are set later, because Slack asked to wait.
MAX_LATE_STATES = 1_000
#: How often each of them is tried.
MAX_ATTEMPTS = 5
#: What Slack adds to its answer while the app does not subscribe to the event of the stop button.
NO_STOP_BUTTON = "missing_agent_session_stopped_event_subscription"
#: Error codes that concern the app in a whole workspace. Those of a token and of its scopes do too.
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
#: The reactions to errors that concern a chat, whatever the thread.
_CHAT_REACTIONS = ("closed", "chat_barred")
#: What became of a call. `taken`: Slack shows the status. `later`: Slack asks to call later.
#: `refused`: Slack refuses the method here. `failed`: nothing is known.
StatusOutcome = Literal["taken", "later", "refused", "failed"]
#: Where a status is shown: a chat, and the ts of a message in it. For a session it is the first
#: message of a thread.
StatusPlace = tuple[str, str]


class ConversationStatus:
    """The status of one app's threads. Lives as long as its channel.

    * `channel`: the channel's name in the YAML, for the log.
    * `client_of`: returns a client with the token of a chat's workspace.
    * `has_sessions`: whether the app has the agent view.

    Both methods need the scope chat:write alone.
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
        #: Where Slack refuses sessions, and where it refuses "is thinking…".
        self._session_refusals = Refusals(
            channel, "agents.sessions.setStatus", clock, by_thread=True
        )
        self._status_refusals = Refusals(channel, "assistant.threads.setStatus", clock)
        #: Puts the calls for one message in order: a status that is shown after its removal would
        #: stay.
        self._locks: WeakValueDictionary[StatusPlace, asyncio.Lock] = WeakValueDictionary()
        #: The event id of the newest turn in each thread. A state that an earlier turn led to is
        #: outdated, and is not shown.
        self._newest_turns: OrderedDict[StatusPlace, str] = OrderedDict()
        #: The threads that Slack shows as working because of this process.
        self._working: OrderedDict[StatusPlace, None] = OrderedDict()
        #: The tasks that set a state when Slack takes calls again, by thread.
        self._late_states: dict[StatusPlace, asyncio.Task[None]] = {}
        #: Whether the log names the missing stop button already.
        self._misses_stop_button = False

    def begin(self, chat: str, ts: str, event_id: str) -> None:
        """Note that a turn begins in a thread, without showing it.

        The states that earlier turns led to are outdated from now on.
        """
        _remember(self._newest_turns, (chat, ts), event_id)
        task = self._late_states.pop((chat, ts), None)
        if task:
            task.cancel()

    async def show(self, chat: str, ts: str, event_id: str = "", *, title: str = "") -> float:
        """Show that the bot works on a turn. Never raises.

        * `ts`: the message where it is shown: a thread's first one, or any other.
        * `event_id`: of the turn.
        * `title`: the title of a new session, "" for none. Slack ignores it for one that exists.

        Returns the seconds after which it must be shown again, 0 for never.
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
        """Remove "is thinking…" from the message `ts`. Never raises.

        A session stays: `show_state` ends it.
        """
        if not self._uses_sessions(chat, ts):
            async with self._lock(chat, ts):
                await self._set_status(chat, ts, "")

    async def show_state(self, chat: str, ts: str, state: ShownState, *, after: str = "") -> None:
        """Show what the thread waits for now, if it has a session. Never raises.

        `after`: the event id of the turn that led to the state, "" for none. If Slack asks to wait,
        the state is set later: a thread that goes on "working" would have a stop button for an
        hour.
        """
        async with self._lock(chat, ts):
            is_outdated = after and self._newest_turns.get((chat, ts), after) != after
            is_working = (chat, ts) in self._working
            if is_outdated or not (is_working or self._uses_sessions(chat, ts)):
                return
            # A thread that is not shown as working looks active already, so this can be left out
            # while Slack asks to wait.
            must_wait = self._session_refusals.state_of(chat, ts) == "later"
            if must_wait and state == "active" and not is_working:
                return
            outcome = await self._set_session(chat, ts, state)
            if outcome == "later":
                self._set_later(chat, ts, state)

    def _lock(self, chat: str, ts: str) -> asyncio.Lock:
        return self._locks.setdefault((chat, ts), asyncio.Lock())

    def _uses_sessions(self, chat: str, ts: str) -> bool:
        """Return whether Slack shows a session in this thread, as far as is known."""
        return self._has_sessions and self._session_refusals.state_of(chat, ts) != "refused"

    async def _set_session(
        self, chat: str, ts: str, state: ShownState, title: str = ""
    ) -> StatusOutcome:
        """Set the state of a thread's session, unless Slack refused that lately.

        A thread that this process shows as working is ended all the same.
        """
        refusal = self._session_refusals.state_of(chat, ts)
        if refusal == "later":
            return "later"
        if refusal == "refused" and (chat, ts) not in self._working:
            return "refused"

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
                if self._session_refusals.scope_of(exc) != "thread":
                    raise
            # Slack may have refused the title alone. The state is worth more.
            return await set_status()

        outcome, answer = await self._call(chat, ts, self._session_refusals, call)
        is_ended = outcome == "taken" and state != "processing"
        if is_ended or outcome == "refused":
            self._working.pop((chat, ts), None)

        misses_button = answer is not None and NO_STOP_BUTTON in str(answer.data)
        if misses_button and not self._misses_stop_button:
            self._misses_stop_button = True
            log.warning("status.no_stop_button", extra={"channel": self._channel})
        return outcome

    async def _set_status(self, chat: str, ts: str, status: str) -> StatusOutcome:
        """Set "is thinking…", or remove it with "", unless Slack refused that lately."""
        refusal = self._status_refusals.state_of(chat, ts)
        if refusal:
            return refusal

        async def call(client: AsyncWebClient, channel_id: str) -> Any:
            return await client.assistant_threads_setStatus(
                channel_id=channel_id,
                thread_ts=ts,
                status=status,
            )

        outcome, _ = await self._call(chat, ts, self._status_refusals, call)
        return outcome

    async def _call(
        self,
        chat: str,
        ts: str,
        refusals: Refusals,
        call: Callable[[AsyncWebClient, str], Awaitable[Any]],
    ) -> tuple[StatusOutcome, Any]:
        """Call one of the two methods, and remember a refusal.

        `call` gets a client and Slack's id of the chat. Returns the outcome and Slack's answer,
        None if there is none.
        """
        from slack_sdk.errors import SlackApiError

        try:
            client = await self._client_of(chat)
            answer = await call(client, split_place(chat).id)
            refusals.note_success(chat)
            return "taken", answer
        except SlackApiError as exc:
            return refusals.note_refusal(chat, ts, exc), None
        except Exception:  # noqa: BLE001  # best effort: the network, or an unreadable answer
            return "failed", None

    def _set_later(self, chat: str, ts: str, state: ShownState) -> None:
        """Set the state in the background when Slack takes calls again.

        A turn that begins before that cancels the task.
        """
        earlier = self._late_states.pop((chat, ts), None)
        if earlier:
            earlier.cancel()
        if len(self._late_states) < MAX_LATE_STATES:
            task = asyncio.create_task(self._keep_setting(chat, ts, state))
            self._late_states[chat, ts] = task

    async def _keep_setting(self, chat: str, ts: str, state: ShownState) -> None:
        """Set the state each time that Slack takes calls again, until it is set."""
        for _ in range(MAX_ATTEMPTS):
            await self._sleep(self._session_refusals.seconds_left(chat, ts))
            async with self._lock(chat, ts):
                if await self._set_session(chat, ts, state) != "later":
                    break
        # Not if a newer state has replaced this one.
        if self._late_states.get((chat, ts)) is asyncio.current_task():
            del self._late_states[chat, ts]


class Refusals:
    """Remembers where Slack refuses one of its methods, and until when.

    Lives as long as its ConversationStatus. A refusal concerns the app in a whole workspace, one
    chat or one thread: Slack's error code says which.

    `by_thread`: whether a refusal whose code names neither the app nor the chat concerns one
    thread. Slack documents no codes for an app without sessions, so several such refusals in a row
    concern the app. Without `by_thread` it concerns the chat, since each message of the chat would
    be refused anew.
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
        #: How many threads Slack has refused since it last took a call, by workspace.
        self._refused_threads: Counter[str] = Counter()
        #: When each refusal ends, and what Slack asked for. The key is a workspace ("" in an app of
        #: one workspace), a chat, or a chat with a ts.
        self._refusals: dict[str, tuple[float, Literal["later", "refused"]]] = {}

    def state_of(self, chat: str, ts: str) -> Literal["", "later", "refused"]:
        """Return whether a call may be made in this thread.

        It is "later" if Slack asked to wait, "refused" if it refused a call lately, "" for yes.
        """
        now = self._clock()
        kinds = [kind for ends_at, kind in self._refusals_of(chat, ts) if now < ends_at]
        if not kinds:
            return ""
        return "refused" if "refused" in kinds else "later"

    def seconds_left(self, chat: str, ts: str) -> float:
        """Return the seconds until a call may be made, 0 for now."""
        ends = [ends_at for ends_at, _ in self._refusals_of(chat, ts)]
        return max([0.0, *(ends_at - self._clock() for ends_at in ends)])

    def _refusals_of(self, chat: str, ts: str) -> list[tuple[float, Literal["later", "refused"]]]:
        """Return the refusals that concern a thread."""
        places = (split_place(chat).team, chat, _thread_place(chat, ts))
        return [self._refusals[place] for place in places if place in self._refusals]

    def note_success(self, chat: str) -> None:
        """Note that Slack took a call in a chat."""
        self._refused_threads.pop(split_place(chat).team, None)

    def note_refusal(self, chat: str, ts: str, error: SlackApiError) -> StatusOutcome:
        """Remember a refusal, and return what became of the call.

        A fault of Slack itself is not remembered: the next call may succeed.
        """
        scope = self.scope_of(error)
        if not scope:
            return "failed"

        seconds = REFUSED_SECONDS
        outcome: Literal["later", "refused"] = "refused"
        if _is_limited(error):
            seconds = retry_after(error.response.headers)
            outcome = "later"

        team = split_place(chat).team
        if scope == "thread":
            self._refused_threads[team] += 1
            if self._refused_threads[team] >= MAX_REFUSED_THREADS:
                scope = "app"
        if len(self._refusals) >= MAX_REFUSALS:
            self._refusals.clear()
        places = {"app": team, "chat": chat, "thread": _thread_place(chat, ts)}
        self._refusals[places[scope]] = (self._clock() + seconds, outcome)

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
        """Return what a refusal concerns, by its code; "" for a fault of Slack itself."""
        code = error_code(error.response)
        reaction = reaction_to(code)
        # Slack limits the calls of an app in a workspace.
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
    """Return the HTTP status of an error, 0 if it is not known."""
    # If the SDK could not read the body, this is aiohttp's response, with another name for it.
    response = error.response
    return int(getattr(response, "status_code", 0) or getattr(response, "status", 0))


def title_of(turn: Turn) -> str:
    """Return the title of the session that a turn begins: the first words of the message.

    A file without words gives its name. "" for a tap. Angle brackets are left out, which at Slack
    begin a mention or a link. So are characters that people cannot see: one that turns the
    direction of text would garble the list of threads, and Slack refuses a title of nothing else.
    """
    if turn.tap is not None:
        return ""
    text = turn.text
    if not text and turn.media:
        text = turn.media[0].filename
    words_on_one_line = " ".join(text.replace("<", " ").replace(">", " ").split())
    text = " ".join(without_invisible(words_on_one_line).split())
    if len(text) <= MAX_TITLE_CHARS:
        return text
    cut = text[: MAX_TITLE_CHARS - 1]
    words, space, _ = cut.rpartition(" ")
    # A cut word is left out, unless there is no other, as in languages without spaces.
    if space and len(words) > MAX_TITLE_CHARS // 2:
        cut = words
    return f"{cut.rstrip()}…"


def _thread_place(chat: str, ts: str) -> str:
    """Return the key of one thread's refusals."""
    return f"{chat} {ts}"


def _remember(values: OrderedDict[StatusPlace, Any], place: StatusPlace, value: Any) -> None:
    """Store a value as the newest, and remove the oldest ones beyond MAX_THREADS."""
    values[place] = value
    values.move_to_end(place)
    while len(values) > MAX_THREADS:
        values.popitem(last=False)
