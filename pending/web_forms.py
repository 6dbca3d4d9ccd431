"""WebForms: opens the form of a question, and checks a filled-in form, before anything is stored.

The web process does both itself: Slack waits three seconds, in which all workers may be busy. A
turn that it cannot answer so fast is stored like any other, and a worker answers it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine
from concurrent.futures import TimeoutError as Late
from dataclasses import replace
from typing import Any, TypeVar

from redis.exceptions import RedisError

from sayso.channels.base import Channel, ShowsForms
from sayso.channels.edit_form import EditForm
from sayso.channels.i18n.texts import texts_for
from sayso.channels.markdown.convert import plain
from sayso.channels.types import Received, Turn
from sayso.infra.records import OtherVersion
from sayso.pending.open_forms import OpenForms

log = logging.getLogger(__name__)

#: How long a tap may take to show a form, in seconds. Slack waits three for its answer.
OPEN_SECONDS = 2.3
#: How long a filled-in form may take to be checked. It still has to be stored after that.
CHECK_SECONDS = 1.2

T = TypeVar("T")


class WebForms:
    """Opens and checks the forms of all channels. One per web process; used from any thread.

    `open_seconds` and `check_seconds` limit how long a webhook waits.
    """

    def __init__(
        self,
        questions: OpenForms,
        *,
        open_seconds: float = OPEN_SECONDS,
        check_seconds: float = CHECK_SECONDS,
    ) -> None:
        self.questions = questions
        self._open_seconds = open_seconds
        self._check_seconds = check_seconds
        self._lock = threading.Lock()
        #: Runs the calls to Redis and to platforms. `open_form` may show a form that is still
        #: loading and leave a task on this loop that fills it, after its webhook was answered. The
        #: loop begins with the first form, after the process has forked: a thread would not be in
        #: the child.
        self._loop: asyncio.AbstractEventLoop | None = None

    def answer_form(self, channel: Channel, received: Received) -> Received:
        """Open the form that a tap asks for, or check a filled-in form.

        Return what to store of the webhook: `received` unchanged, or without its turn and with the
        answer for the platform.
        """
        if len(received.turns) != 1:
            return received
        turn = received.turns[0]
        # Most webhooks are messages, and looking at a channel's methods takes longer.
        if turn.tap is None or not isinstance(channel, ShowsForms):
            return received
        if turn.kind == "form":
            return self._checked(channel, received, turn)
        if not self.questions.asks_for_form(turn):
            return received

        # None: no form was shown, or not in time. The tap is then stored, and a worker asks for the
        # values one by one. If the platform shows the form all the same, the person has both ways,
        # and the one that is finished first changes the question.
        answer = self._run(channel.open_form(turn, self.questions.open), self._open_seconds)
        if answer is None:
            return received

        ids = {"conversation": turn.conversation.id, "event": turn.event_hash}
        log.info("form.opened", extra=ids)
        return replace(received, turns=(), answer=answer, ignored="a tap that opened a form")

    def _checked(self, channel: ShowsForms, received: Received, turn: Turn) -> Received:
        """Return what to store of a filled-in form: nothing if a value cannot be taken."""
        errors: dict[str, str] = {}
        form = self._run(self._find(turn), self._check_seconds)
        if form is not None:
            errors = form_errors(form, turn)
        if not errors:
            return received
        answer = channel.form_errors(errors)
        reason = "a form with values that cannot be taken"
        return replace(received, turns=(), answer=answer, ignored=reason)

    async def _find(self, turn: Turn) -> EditForm | None:
        """Return the form of a question, None also where Redis does not answer."""
        try:
            return await self.questions.find(turn)
        except (RedisError, OtherVersion):
            return None

    def _run(self, coroutine: Coroutine[Any, Any, T], seconds: float) -> T | None:
        """Return the result of a coroutine, None if it takes too long.

        Such a coroutine is cancelled, but not the tasks that it has started.
        """
        running = asyncio.run_coroutine_threadsafe(coroutine, self._started_loop())
        try:
            return running.result(seconds)
        except Late:
            running.cancel()
            return None

    def _started_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="forms", daemon=True).start()
            return self._loop


def form_errors(form: EditForm, turn: Turn) -> dict[str, str]:
    """Return what cannot be taken of a filled-in form, by field; nothing if its turn may be stored.

    A form that has other fields than its question is stored: a worker refuses it.
    """
    texts = texts_for(form.language)
    try:
        answer = form.read(turn.form)
    except KeyError:
        return {}
    errors = {}
    for name, problem in answer.problems.items():
        errors[name] = plain(texts.field_problem(problem))
    if not (errors or answer.changes):
        errors[form.fields[0].name] = texts.form_unchanged()
    return errors
