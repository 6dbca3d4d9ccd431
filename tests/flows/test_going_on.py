"""Going on: workers die from the yes to the rest of the request, and nothing is lost, doubled or untold."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import RedisError

from sayso.channels.i18n.catalogue import catalogue
from sayso.channels.i18n.texts import texts_for
from sayso.channels.types import Conversation
from sayso.infra.redis.client import PREFIX
from sayso.pending.sharded_scripts import shard_of
from sayso.testing.simulation.tools import Effects
from tests.agent.providers.api import KEY
from tests.flows.deaths import CHANCE, happened, plan, planned
from tests.flows.strict_model import FAILURES, StrictModel
from tests.flows.system import System, TelegramPerson, until

#: How many workers die at random; `make kills-after` asks for 1,000. Without it only at the chosen points.
KILLS = int(os.environ.get("SAYSO_KILLS_AFTER", "0"))
#: The probability of a death at each point of a random run, how many people write at once, and the workers.
DEATH, PEOPLE, WORKERS = 0.03, 12, 4
#: Seconds without progress after which a person counts as left alone.
PATIENCE = 150.0
#: Seconds after the end of a lease at which another worker would have taken up what was left.
REST_SECONDS = 5.0
CHANNEL = "shop"
TEXTS = texts_for("en")

#: The points at which a worker dies, from the yes to the reply of the continuation.
POINTS = (
    "after claim",
    "after start",
    "pay done",
    "after finish",
    "before commit",
    "after commit",
    "after rest model",
    "note done",
    "before rest commit",
    "after rest commit",
)

YAML = """
public_url: {public_url}
redis_url: ${{REDIS_URL}}
agent:
  model: openai:gpt-4o-mini
  api_key: ${{OPENAI_API_KEY}}
  base_url: {model}/v1
  max_retries: 0
tools: [tests.flows.deaths]
workers: {{concurrency: {places}, turn_timeout: 6}}
limits: {{per_minute: 60000, in_one_go: 60000}}  # a quiet machine is faster than people
channels:
  shop:
    {{platform: telegram, token: "${{TELEGRAM_TOKEN}}", secret_token: "${{TELEGRAM_SECRET}}", api_url: {url}/telegram,
     messages_per_second: 0, policy: {{allow: [note], review: [pay, book], deny: []}}, confirm_ttl: 600}}
"""


class Shop(System):
    """The running system with one channel, whose workers are forked, and replaced when they die."""

    def __init__(self, folder: Path, model: StrictModel, chance: float) -> None:
        super().__init__(folder, workers=1, environ={"OPENAI_API_KEY": KEY, CHANCE: str(chance)})
        places = (
            4 if KILLS else 1
        )  # at chosen points, a death should end the work for one person only
        self.config.write_text(
            YAML.format(public_url=self.url, url=self.platforms.url, model=model.url, places=places)
        )

    def start_worker(self) -> subprocess.Popen[bytes]:
        """Start the parent of the workers."""
        self.workers.append(self.process("worker", "--processes", str(WORKERS)))
        return self.workers[-1]

    def is_at_rest(self, conversation: str) -> bool:
        """Return whether nothing waits in a conversation and no worker has it.

        A worker that died when all was done has left its lease, which nothing but a message takes up.
        """
        numbers, waiting = self.look_at(conversation)
        is_held = (
            bool(numbers.get("token"))
            and float(numbers.get("until", 0)) / 1000 > time.time() - REST_SECONDS
        )
        return waiting == 0 and not is_held

    def look_at(self, conversation: str) -> tuple[dict[str, str], int]:
        """Return the numbers of a conversation, and how many queues of it have entries; -1 while Redis is away."""
        base = f"{PREFIX}{self.config.stem}:{{{shard_of(conversation)}}}"
        try:
            with Redis.from_url(self.redis.url, decode_responses=True) as client:
                pipe = client.pipeline()
                pipe.hgetall(f"{base}:conversation:{conversation}")
                pipe.exists(f"{base}:inbox:{conversation}", f"{base}:outbox:{conversation}")
                numbers, waiting = pipe.execute()
        except RedisError:
            return {}, -1
        return numbers, waiting


@dataclass
class Request:
    """One request of a person: what was paid, noted and booked, and the messages that arrived."""

    bill: str
    yeses: int = 0
    #: The most acts with which one question was answered: each of them may be answered with the outcome.
    acts: int = 1
    texts: list[str] = field(default_factory=list)

    def faults(self, effects: Counter[tuple[str, str]], *, fails: bool = False) -> list[str]:
        """Return the promises that were broken. `fails`: the model failed after the payment."""
        all_text = "\n".join(self.texts)
        found = []
        for name, word in (("pay", "Paid"), ("note", "Noted"), ("book", "Booked")):
            begun, done = (
                effects[f"{name} {self.bill}", "begin"],
                effects[f"{name} {self.bill}", "effect"],
            )
            says_done = f"{word} {self.bill}." in all_text
            says_unknown = (
                TEXTS.unknown(name if name == "note" else f"{name.title()} {self.bill}") in all_text
            )
            if begun > 1 or done > 1:
                found.append(f"{name} took effect {done} times")
            if says_done and not done:
                found.append(f"told {word} without an effect")
            is_told = says_done or says_unknown or (name == "note" and "answer: note" in all_text)
            if begun and not is_told:
                found.append(f"{name} is untold")
        marked = TEXTS.repeated("")
        most = max(
            Counter(text for text in self.texts if not text.startswith(marked)).values(), default=0
        )
        if most > self.acts:
            found.append("a message came twice without a mark")
        if self.yeses == 0:
            found.append("no question arrived")
        has_end = (
            "book done" in all_text
            or "unknown: " in all_text
            or (fails and self._says_why(all_text))
        )
        if not has_end:
            found.append("the rest is missing and nothing says so")
        return found

    def _says_why(self, text: str) -> bool:
        lost = [text for name, text in catalogue("en").items() if name.startswith("lost_")]
        reasons = (TEXTS.rest_missing(), *lost)
        return any(reason in text for reason in reasons)


class Buyer(TelegramPerson):
    """A person who asks for a bill to be paid, noted and booked, and says yes to each question."""

    channel = CHANNEL
    system: Shop

    def ask(self, bill: str, chance: random.Random, failure: str = "") -> Request:
        """Make a request, and say yes until nothing is asked any more."""
        request = Request(bill)
        seen = len(self.system.ledger(self.chat))
        self._post(self.text(self._next(), f"do {bill} {failure}".strip()))
        while True:
            arrived = self._await_rest(seen)
            request.texts += [each["text"] for each in arrived]
            seen += len(arrived)
            # The answer to a further tap on an earlier question may stand below a new question.
            question = next((each for each in reversed(arrived) if each["buttons"]), None)
            if question is None or request.yeses > 6:
                return request
            request.yeses += 1
            request.acts = max(request.acts, self._say_yes(question, chance))

    def _say_yes(self, question: dict[str, Any], chance: random.Random) -> int:
        """Say yes by text, by a tap, or both, delivered once or twice. Return how many acts that are."""
        typed = self.text(self._next(), "yes")
        tapped = self.tapped(self._next(), question["buttons"][0]["data"])
        hooks = chance.choice(
            ([typed], [tapped], [typed, tapped], [typed, typed], [tapped, tapped])
        )
        for hook in hooks:
            self._post(hook)
        return len({id(hook) for hook in hooks})

    def _await_rest(self, seen: int) -> list[dict[str, Any]]:
        """Return the new messages once the conversation is at rest."""
        conversation = Conversation(CHANNEL, self.chat).id
        try:
            until(lambda: self.system.is_at_rest(conversation), seconds=PATIENCE)
        except AssertionError as exc:
            exc.add_note(f"{conversation}: {self.system.look_at(conversation)}")
            raise
        return self.system.ledger(self.chat)[seen:]

    def _post(self, hook: Any) -> None:
        until(lambda: self.system.post(*hook).status_code == 200, seconds=PATIENCE)


@pytest.fixture(scope="module")
def model() -> Iterator[StrictModel]:
    """Serve the model."""
    with StrictModel() as serving:
        yield serving


@pytest.fixture(scope="module")
def shop(model: StrictModel) -> Iterator[Shop]:
    """Run the system."""
    with (
        tempfile.TemporaryDirectory(prefix="sayso-after-") as folder,
        Shop(Path(folder), model, DEATH if KILLS else 0.0) as running,
    ):
        yield running


def effects_of(shop: Shop) -> Counter[tuple[str, str]]:
    """Return how often each step of each effect is in the file."""
    return Counter((entry.bill, entry.step) for entry in Effects(shop.data).read())


@pytest.mark.skipif(bool(KILLS), reason="the random run has a system of its own")
def test_death_at_each_point_and_failures_of_the_model_leave_no_request_untold(
    shop: Shop, model: StrictModel
) -> None:
    """Each person meets one death, or one failure of the model; all of them write at once."""
    cases = [(point, "") for point in POINTS] + [("", failure) for failure in FAILURES] + [("", "")]

    def meet(number: int) -> tuple[str, list[str]]:
        point, failure = cases[number]
        buyer = Buyer(shop, 5000 + number)
        if point:
            plan(shop.data, Conversation(CHANNEL, buyer.chat).id, point)
        request = buyer.ask(f"b{number}", random.Random(number), failure)
        faults = request.faults(effects_of(shop), fails=bool(failure))
        return point or failure, [f"{each}: {request}" for each in faults]

    with ThreadPoolExecutor(len(cases)) as pool:
        found = dict(pool.map(meet, range(len(cases))))
    assert {name: faults for name, faults in found.items() if faults} == {}
    assert model.refused == []
    assert planned(shop.data) == []


@pytest.mark.skipif(bool(KILLS), reason="the random run has a system of its own")
def test_redis_killed_while_the_agent_goes_on_loses_nothing(shop: Shop, model: StrictModel) -> None:
    """The worker waits for the model when Redis dies. With Redis back, the rest arrives, once."""
    buyer = Buyer(shop, 5100)

    with ThreadPoolExecutor() as pool:
        asking = pool.submit(buyer.ask, "b100", random.Random(1), "slow")
        until(lambda: model.asked["b100"] > 1)
        assert shop.redis.pid
        os.kill(shop.redis.pid, signal.SIGKILL)
        until(lambda: not shop.redis.is_alive())
        shop.redis.restart()
        request = asking.result()
    assert request.faults(effects_of(shop)) == []
    assert model.refused == []


if KILLS:  # asked for by `make kills-after`

    @pytest.mark.timeout(600 + 10 * KILLS)
    def test_nothing_is_lost_doubled_or_untold_in_many_deaths_at_random(
        shop: Shop, model: StrictModel
    ) -> None:
        """Workers die at any point of any turn."""
        requests: list[Request] = []
        began = time.monotonic()

        def come(number: int) -> None:
            buyer, chance = Buyer(shop, 6000 + number), random.Random(number)
            count = 0
            while len(happened(shop.data)) < KILLS:
                count += 1
                requests.append(buyer.ask(f"b{number}x{count}", chance))
                if number == 0:
                    deaths = len(happened(shop.data))
                    say(
                        f"{time.monotonic() - began:5.0f} s, {deaths} deaths, {len(requests)} requests"
                    )

        with ThreadPoolExecutor(PEOPLE) as pool:
            list(pool.map(come, range(PEOPLE)))
        effects = effects_of(shop)
        say(report(requests, effects, happened(shop.data)))
        assert [
            f"{fault}: {request}" for request in requests for fault in request.faults(effects)
        ] == []
        assert model.refused == []


def report(requests: list[Request], effects: Counter[tuple[str, str]], deaths: list[str]) -> str:
    """Return the figures of a random run."""
    whole = sum("book done" in "\n".join(request.texts) for request in requests)
    faults = Counter(
        re.sub(r"\d+", "n", fault) for request in requests for fault in request.faults(effects)
    )
    done = sum(count for (_, step), count in effects.items() if step == "effect")
    rows = [f"| {point} | {count} |" for point, count in Counter(deaths).most_common()]
    head = f"{len(deaths)} deaths, {len(requests)} requests, {done} effects, {whole} requests done to their end"
    return "\n".join(
        [
            "",
            head,
            f"faults: {dict(faults) or 'none'}",
            "| the worker died | times |",
            "|---|---|",
            *rows,
        ]
    )


def say(text: str) -> None:
    """Print a line; pytest shows it with -s."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
