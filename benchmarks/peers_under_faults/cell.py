"""Cell: one system under one fault, run after run on one bot."""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal, Self

from benchmarks.peers_under_faults import effects, judge
from benchmarks.peers_under_faults.model import SIGNATURE, Failure, Json, StrictModel, text_of
from benchmarks.peers_under_faults.platform import Platform, Read, Webhook
from benchmarks.peers_under_faults.systems import System, make_system

#: The moments at which a system can be killed.
#: "tool returned": within 30 ms after the effect's tool got its answer. "outcome told": the first
#: message after the effect was delivered. "first reply", "model's reply": this message is on its
#: way, and never arrives.
Moment = Literal[
    "before effect",
    "after effect",
    "tool returned",
    "model call",
    "outcome told",
    "first reply",
    "model's reply",
]
#: How long the person waits for a question, and for the end of a run, in seconds. After a kill the
#: time counts from when the system is up again: Sayso's lease of 10 s is the longest wait then.
QUESTION_SECONDS, END_SECONDS, KILLED_SECONDS = 90.0, 25.0, 60.0
#: A person reads a question for so long before they answer, in seconds.
READING_SECONDS = 0.6
#: So long a person waits for the 200 of their last webhook before they answer a question, in seconds.
PATIENCE_SECONDS = 8.0
#: A run has ended when nothing more is read for so long after a good verdict, and after a bad one,
#: in seconds: a better word may still come.
QUIET_SECONDS, LAST_WORD_SECONDS = 1.0, 6.0
#: How long the chat may take to answer a plain message after the run, in seconds.
ALIVE_SECONDS = 30.0
#: The longest pause between the tool's answer and the kill, in seconds.
RETURNED_SECONDS = 0.03
STEP_SECONDS = 0.05


class Missing(Exception):
    """Raised when a system does not ask its question: the run cannot begin."""


@dataclass(frozen=True, slots=True)
class Result:
    """The verdict of one run, and what it rests on."""

    verdict: judge.Verdict
    seconds: float
    effects: dict[str, int]
    texts: list[str]
    refused_histories: int
    notes: list[str]


#: What happens in one run. It ends with `settle`.
Profile = Callable[["Act"], judge.Run]


class Cell:
    """One system, its platform and its model, from `with` to its end."""

    def __init__(self, name: str, *, expiry: float = 0.0, seed: int = 0) -> None:
        self.name = name
        self.chance = random.Random(f"{name}/{seed}")
        self.platform = Platform(self._on_message)
        self.model = StrictModel(self._on_request)
        self.act: Act | None = None
        self._expiry = expiry
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        try:
            return self._enter()
        except BaseException:
            self._stack.close()
            raise

    def _enter(self) -> Self:
        folder = Path(self._stack.enter_context(_folder()))
        self._stack.enter_context(self.platform)
        self._stack.enter_context(self.model)
        stages = self._stack.enter_context(StageServer(self._on_stage))
        self.system: System = make_system(
            self.name,
            folder,
            model=self.model.url,
            api=self.platform.api_url,
            bot=self.platform.bot_url,
            harness=stages.url,
        )
        if self._expiry:
            self.system.expire(self._expiry)
        self._stack.push(self.system.__exit__)
        self.system.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._stack.__exit__(*exc)

    def run(self, profile: Profile, number: int) -> Result:
        """Run a profile once, with orders and a chat of its own."""
        started = time.monotonic()
        self.act = Act(self, number)
        refused = len(self.model.refused)
        try:
            run = profile(self.act)
        except Missing as exc:
            self.act.notes.append(str(exc))
            run = self.act.settle([])
        self.act.end()
        verdict = judge.judge(run)
        return Result(
            verdict=verdict,
            seconds=round(time.monotonic() - started, 1),
            effects={
                f"{order} {meaning}": count for (order, meaning), count in run.effects.items()
            },
            texts=list(run.texts),
            refused_histories=len(self.model.refused) - refused,
            notes=run.notes,
        )

    def _on_stage(self, stage: str, order: int) -> None:
        if self.act is not None:
            self.act.on_stage(stage, order)

    def _on_message(self, chat: str, text: str, delivered: bool) -> bool:
        if self.act is None or chat != self.act.chat:
            return False
        return self.act.on_message(text, delivered)

    def _on_request(self, messages: list[Json]) -> Failure | None:
        return None if self.act is None else self.act.on_request(messages)


class Act:
    """One run: what the person does, where the system is killed, and what is left in the end."""

    def __init__(self, cell: Cell, number: int) -> None:
        self.cell = cell
        self.chance = cell.chance
        self.chat = str(5_000_000_000 + number)
        first = 410_000 + 10 * number
        self.orders = (first + 1, first + 2, first + 3)
        self.started = time.monotonic()
        self.notes: list[str] = []
        self._answered_at = 0.0
        self._moment: Moment | None = None
        self._failure: Failure | None = None
        self._failing_seconds = 0.0
        self._failing_until = 0.0
        self._kills = 0
        self._up_at = 0.0
        #: One entry for each kill after which the system is not up yet.
        self._coming_up: list[bool] = []
        self._effects_before = 0
        self._lock = threading.Lock()
        self._timer = threading.Timer(0, list)
        self._at_stage: tuple[str, Callable[[], Any]] = ("", list)
        self._hooks: list[Webhook] = []
        self._answered: list[Read] = []

    # What the person does.

    def write(self, text: str) -> None:
        """Write a message."""
        self._hooks.append(self.cell.platform.write(self.cell.system.hook, self.chat, text))

    def answer_in_words(self, text: str) -> None:
        """Answer the question by a message."""
        self._begin_answer()
        self.write(text)

    def in_a_group(self) -> None:
        """Let the chat be a group."""
        self.chat = f"-100{self.chat}"

    def question(self, order: int = 0, seconds: float = QUESTION_SECONDS) -> Read:
        """Wait for a question that was not answered yet, about an order. Raises Missing.

        The message that led to it has its 200 by then, so that a fault does not meet that as well;
        after `PATIENCE_SECONDS` the person answers in any case.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = self._open_question(order)
            is_quiet = all(hook.accepted for hook in self._hooks) and not self._timer.is_alive()
            age = time.monotonic() - found.at if found is not None else 0.0
            if (is_quiet and age > READING_SECONDS) or age > PATIENCE_SECONDS:
                return found
            time.sleep(STEP_SECONDS)
        raise Missing(f"no question about {order or 'anything'}: {self.texts()}")

    def _open_question(self, order: int) -> Read | None:
        for each in list(self.cell.platform.read):
            is_question = each.chat == self.chat and len(each.buttons) >= 2
            if is_question and each not in self._answered and str(order or "") in each.text:
                return each
        return None

    def yes(self, question: Read, person: int = 0) -> None:
        """Tap the first button of a question."""
        self._tap(question, 0, person)

    def no(self, question: Read) -> None:
        """Tap the second button of a question."""
        self._tap(question, 1, 0)

    def _tap(self, question: Read, button: int, person: int) -> None:
        self._begin_answer()
        self._answered.append(question)
        hook = self.cell.system.hook
        data = question.buttons[button]
        tap = self.cell.platform.tap(hook, self.chat, data, person, question.message)
        self._hooks.append(tap)

    def asked(self, order: int) -> Read | None:
        """Return the question about a further step, None if the run ends without it."""
        try:
            return self.question(order, KILLED_SECONDS if self._kills else END_SECONDS)
        except Missing:
            self.notes.append(f"never asked about step {self.orders.index(order) + 1}")
            return None

    def yes_if_asked(self, order: int) -> None:
        """Tap Yes at the question about a further step, if it comes."""
        question = self.asked(order)
        if question is not None:
            self.yes(question)

    def wait_for_effect(self) -> None:
        """Wait until the effect took place, at most as long as a run may take."""
        deadline = time.monotonic() + END_SECONDS
        while not self.effects() and time.monotonic() < deadline:
            time.sleep(STEP_SECONDS)

    def at_stage(self, stage: str, what: Callable[[], Any]) -> None:
        """Do something once, when the tool reaches a stage. The tool waits for it."""
        self._at_stage = (stage, what)

    def _begin_answer(self) -> None:
        self._answered_at = self._answered_at or time.monotonic()

    # Where things go wrong.

    def kill_at(self, moment: Moment) -> None:
        """Kill the system at the next such moment. After the effects that there are now."""
        with self._lock:
            self._effects_before = sum(self.effects().values())
            self._moment = moment

    def kill_within(self, seconds: float) -> None:
        """Kill the system at a random time."""
        self._timer = threading.Timer(self.chance.uniform(0, seconds), self._kill)
        self._timer.start()

    def fail_model(self, status: int, seconds: float, **headers: str) -> None:
        """Let the model fail for so long, beginning with the first request after the effect."""
        self._failure = Failure(status, headers)
        self._failing_seconds = seconds

    def end(self) -> None:
        """Let nothing more go wrong in this run, and nothing more arrive."""
        self._moment = None
        self._failure = None
        for hook in self._hooks:
            hook.give_up()

    def on_stage(self, stage: str, order: int) -> None:
        """Kill at a stage of the tool, if that is the moment."""
        if order not in self.orders:
            return
        wanted, what = self._at_stage
        if stage == wanted:
            self._at_stage = ("", what)
            what()
        moments: dict[str, Moment] = {
            "before_effect": "before effect",
            "after_effect": "after effect",
        }
        if self._take(moments[stage]):
            self._kill()
        elif stage == "after_effect" and self._take("tool returned"):
            threading.Timer(self.chance.uniform(0, RETURNED_SECONDS), self._kill).start()

    def on_message(self, text: str, delivered: bool) -> bool:
        """Kill at a message, if that is the moment. Return whether it is lost."""
        if not self._has_new_effect():
            return False
        if delivered:
            if self._take("outcome told"):
                self._kill()
            return False
        is_models = text.startswith(SIGNATURE)
        if self._take("first reply") or (is_models and self._take("model's reply")):
            self._kill()
            return True
        return False

    def on_request(self, messages: list[Json]) -> Failure | None:
        """Kill or fail at a request to the model, if that is the moment."""
        asked = " ".join(text_of(each) for each in messages if each["role"] == "user")
        if str(self.orders[0]) not in asked or not self._has_new_effect():
            return None
        if self._take("model call"):
            self._kill()
        if self._failure is None:
            return None
        now = time.monotonic()
        self._failing_until = self._failing_until or now + self._failing_seconds
        return self._failure if now < self._failing_until else None

    def _has_new_effect(self) -> bool:
        return sum(self.effects().values()) > self._effects_before

    def _take(self, moment: Moment) -> bool:
        """Return whether this is the moment. It is only once."""
        with self._lock:
            if self._moment != moment:
                return False
            self._moment = None
            return True

    def _kill(self) -> None:
        self._kills += 1
        self._coming_up.append(True)
        self.cell.system.kill()
        self._up_at = time.monotonic()
        self._coming_up.pop()

    # What is left.

    def effects(self) -> Any:
        """Return the effects of this run's orders, and all that belong to no run's."""
        found = effects.read(self.cell.system.effects)
        for each in list(found):
            order = each[0]
            if order not in self.orders and str(order)[:5] != str(self.orders[0])[:5]:
                del found[each]
        return found

    def texts(self) -> list[str]:
        """Return what the person read since their answer."""
        return self.cell.platform.texts(self.chat, self._answered_at)

    def settle(
        self,
        approved: Sequence[int],
        *,
        refusable: bool = False,
        reason: str = "",
        orders: Sequence[int] = (),
    ) -> judge.Run:
        """Wait for the end of the run, write a plain message, and return what is left."""
        run = self._wait(tuple(approved), refusable, reason, tuple(orders))
        alive = self._is_alive()
        if self._moment is not None:
            self.notes.append(f"never reached: {self._moment}")
        # The answer to the plain message is no word about the run.
        return replace(run, effects=self.effects(), is_alive=alive)

    def _wait(
        self, approved: tuple[int, ...], refusable: bool, reason: str, orders: tuple[int, ...]
    ) -> judge.Run:
        """Wait until all webhooks are answered, the verdict is a good one, and nothing more is read."""
        began = time.monotonic()
        while True:
            run = self._observe(approved, refusable, reason, orders, True)
            limit = KILLED_SECONDS if self._kills else END_SECONDS
            if self._coming_up or self._timer.is_alive():
                time.sleep(STEP_SECONDS)
                continue
            if time.monotonic() - max(began, self._up_at) > limit:
                return run
            verdict = judge.judge(run)
            pause = QUIET_SECONDS if verdict in judge.GOOD else LAST_WORD_SECONDS
            spoken = [each.at for each in list(self.cell.platform.read) if each.chat == self.chat]
            is_quiet = time.monotonic() - max(began, self._up_at, *spoken) > pause
            is_told = verdict not in ("lost", "not told")
            if is_quiet and is_told and all(hook.accepted for hook in self._hooks):
                return run
            time.sleep(STEP_SECONDS)

    def _observe(
        self,
        approved: tuple[int, ...],
        refusable: bool,
        reason: str,
        orders: tuple[int, ...],
        is_alive: bool,
    ) -> judge.Run:
        return judge.Run(
            orders=orders or self.orders,
            approved=approved,
            effects=self.effects(),
            texts=self.texts(),
            is_alive=is_alive,
            refusable=refusable,
            reason=reason,
            reason_read=not reason or self._model_read(reason),
            notes=self.notes,
        )

    def _model_read(self, reason: str) -> bool:
        requests = list(self.cell.model.requests)
        return any(reason in text_of(each) for request in requests for each in request)

    def _is_alive(self) -> bool:
        """Return whether the chat answers a plain message."""
        time.sleep(max(0.0, self._failing_until - time.monotonic()))
        before = len(self.cell.platform.texts(self.chat))
        self.write("Are you open today?")
        deadline = time.monotonic() + (KILLED_SECONDS if self._kills else ALIVE_SECONDS)
        while time.monotonic() < deadline:
            said = self.cell.platform.texts(self.chat)[before:]
            if any("we are open" in text for text in said):
                return True
            time.sleep(STEP_SECONDS)
        return False


def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="pf", ignore_cleanup_errors=True)


class StageServer:
    """Answers the tools that say where they are, after `reached` was called."""

    def __init__(self, reached: Callable[[str, int], None]) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                _, _, stage, order = self.path.split("/")
                reached(stage, int(order))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        self._server = _QuietServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _QuietServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Ignore a tool that was killed while it waited."""
