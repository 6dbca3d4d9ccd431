"""The counters and histograms of each process, for Prometheus.

They are all defined here, so that their labels stay few and known: channels, tools and models of
the configuration, and outcomes. They hold no message, name or number of a person.
docs/reference/observability.md lists them. `sayso.ops.server.metrics_port` serves them.

Several processes of one command, such as workers, count together. The environment variable FOLDER
names a folder for them, and they count in files there: the multiprocess mode of prometheus-client.
A file belongs to one process. The successor of a dead process takes over its file, so that no count
falls and the number of files stays that of the processes.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import re
import threading
from functools import cache
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, values

from sayso.infra.metrics_folder import FOLDER
from sayso.infra.storage.files import open_private

disable_created_metrics()  # a second series for each counter, which no graph needs

#: Bytes of a process's files, by the kind of metric: enough for MAX_VALUES tools and models.
_FILE_BYTES = {"counter": 256 * 1024, "histogram": 1024 * 1024}


class _ProcessNumber:
    """Returns the number of this process, by which its files are named.

    It is the lowest number that no other live process has. A lock on a file holds it for as long as
    the process lives. A forked child gets another number. prometheus-client takes the process id
    instead, so that its files grow with each process that was ever started.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pid = 0
        self._number = 0

    def __call__(self) -> int:
        if self._pid != os.getpid():
            self._number = self._take()
            self._pid = os.getpid()
        return self._number

    def _take(self) -> int:
        """Lock the lowest free number and return it."""
        for number in itertools.count():
            file = os.open(self._folder / f"{number}.lock", os.O_CREAT | os.O_RDWR, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(file)
                continue
            # The file stays open, or the lock would end.
            self._allocate(number)
            return number
        raise AssertionError("unreachable")

    def _allocate(self, number: int) -> None:
        """Reserve the disk space of the files before they are mapped into memory.

        A process that writes to a mapped file for which the disk has no room is killed (SIGBUS).
        """
        if not hasattr(os, "posix_fallocate"):  # macOS
            return
        for kind, size in _FILE_BYTES.items():
            with open_private(self._folder / f"{kind}_{number}.db", "ab") as file:
                os.posix_fallocate(file.fileno(), 0, size)


# prometheus-client chose the class of its values when it was imported, with files named by process
# ids. That choice is replaced before the first metric is defined, for files named by our numbers.
if os.environ.get(FOLDER):
    values.ValueClass = values.MultiProcessValue(_ProcessNumber(Path(os.environ[FOLDER])))

#: All metrics below, and none of other libraries.
REGISTRY = CollectorRegistry()
#: How many values of one label are counted separately. Each value is a separate time series.
MAX_VALUES = 100
#: The label of all further values, and of texts that are no name, which may hold anything.
OTHER = "other"
_NAME = re.compile(r"[\w.:/@+-]{1,100}")

#: Returns the counter or histogram of one combination of label values:
#: `of_labels(TURNS, "telegram", "answered")`. The method `labels` of the metric does the same, and
#: takes several times as long.
of_labels = cache(lambda metric, *label_values: metric.labels(*label_values))

# Upper bounds of the buckets of histograms, in seconds.
#: For work on this machine.
_FAST = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
#: For calls of models and platforms.
_SLOW = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
#: For waits in a queue.
_WAITING = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
#: For answers of people.
_PERSON = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
#: For decisions of people who are asked elsewhere, up to the two weeks that a rule may give them.
_DECISION = (
    60.0,
    300.0,
    900.0,
    1800.0,
    3600.0,
    4 * 3600.0,
    8 * 3600.0,
    86_400.0,
    2 * 86_400.0,
    3 * 86_400.0,
    7 * 86_400.0,
    14 * 86_400.0,
)

WEBHOOKS = Counter(
    "sayso_webhooks",
    "Webhooks, by what was done with them.",
    ["channel", "outcome"],
    registry=REGISTRY,
)
WEBHOOK_SECONDS = Histogram(
    "sayso_webhook_seconds",
    "Time to answer a webhook.",
    ["channel"],
    buckets=_FAST,
    registry=REGISTRY,
)
TURNS_RECEIVED = Counter(
    "sayso_turns_received",
    "Turns that came in, by what the inbox did with them.",
    ["channel", "outcome"],
    registry=REGISTRY,
)
WORKSPACES = Counter(
    "sayso_workspaces",
    "Changes of the workspaces that installed an account, by what changed.",
    ["channel", "outcome"],
    registry=REGISTRY,
)
DELIVERY_REPORTS = Counter(
    "sayso_delivery_reports",
    "Reports of a platform on what became of a reply.",
    ["channel", "status"],
    registry=REGISTRY,
)

TURNS = Counter(
    "sayso_turns", "Turns that were finished, by how.", ["channel", "outcome"], registry=REGISTRY
)
CONTINUATIONS = Counter(
    "sayso_continuations",
    "Turns in which the agent went on after a decision, by how.",
    ["channel", "outcome"],
    registry=REGISTRY,
)
TURN_SECONDS = Histogram(
    "sayso_turn_seconds",
    "Time from the start of a turn to its end.",
    ["channel"],
    buckets=_SLOW,
    registry=REGISTRY,
)
MAILBOX_SECONDS = Histogram(
    "sayso_mailbox_seconds",
    "Time that a turn waited for its worker.",
    ["channel"],
    buckets=_WAITING,
    registry=REGISTRY,
)
LEASES_LOST = Counter(
    "sayso_leases_lost", "Leases of conversations that a worker lost.", registry=REGISTRY
)

MODEL_CALLS = Counter(
    "sayso_model_calls",
    "Calls of models with their retries, by how they ended.",
    ["model", "outcome"],
    registry=REGISTRY,
)
MODEL_SECONDS = Histogram(
    "sayso_model_seconds",
    "Time until a model had answered, with retries.",
    ["model"],
    buckets=_SLOW,
    registry=REGISTRY,
)
MODEL_TOKENS = Counter(
    "sayso_model_tokens",
    "Tokens of model calls; of the prompt, by what the vendor's cache did with them.",
    ["model", "type"],
    registry=REGISTRY,
)
MODEL_COST = Counter(
    "sayso_model_cost_dollars",
    "Cost of model calls, where a price is known.",
    ["model"],
    registry=REGISTRY,
)
TOOL_CALLS = Counter(
    "sayso_tool_calls", "Calls of tools, by how they ended.", ["tool", "outcome"], registry=REGISTRY
)
TOOL_SECONDS = Histogram(
    "sayso_tool_seconds", "Time of tool calls.", ["tool"], buckets=_SLOW, registry=REGISTRY
)

PENDING = Counter(
    "sayso_pending_actions",
    "Pending actions that entered a state, by the audit log.",
    ["channel", "state"],
    registry=REGISTRY,
)
PENDING_ANSWER_SECONDS = Histogram(
    "sayso_pending_answer_seconds",
    "Time from the question to the person's yes or no.",
    ["channel"],
    buckets=_PERSON,
    registry=REGISTRY,
)

APPROVALS = Counter(
    "sayso_approvals",
    "Actions that other people decide, by how the question ended.",
    ["channel", "outcome"],
    registry=REGISTRY,
)
APPROVAL_SECONDS = Histogram(
    "sayso_approval_seconds",
    "Time from the question to the decision of other people.",
    ["channel"],
    buckets=_DECISION,
    registry=REGISTRY,
)
VOTES = Counter(
    "sayso_votes",
    "Votes of other people that were counted, by the answer and how it was given.",
    ["channel", "answer", "form"],
    registry=REGISTRY,
)
VOTES_REFUSED = Counter(
    "sayso_votes_refused",
    "Answers to requests that did not count, by the reason.",
    ["channel", "reason"],
    registry=REGISTRY,
)

DELIVERIES = Counter(
    "sayso_deliveries",
    "Attempts to send a reply, by how they ended.",
    ["channel", "result", "error"],
    registry=REGISTRY,
)
MESSAGES = Counter(
    "sayso_messages",
    "Messages that a platform took, by what it charges them by.",
    ["channel", "class"],
    registry=REGISTRY,
)
SEND_SECONDS = Histogram(
    "sayso_send_seconds",
    "Time until a platform took or refused a reply.",
    ["channel"],
    buckets=_SLOW,
    registry=REGISTRY,
)

REDIS_SECONDS = Histogram(
    "sayso_redis_seconds", "Time of a script in Redis.", buckets=_FAST, registry=REGISTRY
)
REDIS_ERRORS = Counter(
    "sayso_redis_errors", "Scripts that Redis did not run, by error.", ["error"], registry=REGISTRY
)
WORKERS_DIED = Counter(
    "sayso_workers_died", "Workers of this machine that died.", registry=REGISTRY
)
RESTARTS = Counter(
    "sayso_process_restarts",
    "Processes that died and were started anew.",
    ["process"],
    registry=REGISTRY,
)

#: By the name of a label, the values that are counted separately.
_known_values: dict[str, set[str]] = {}
_known_values_lock = threading.Lock()


def label_value(label: str, value: str) -> str:
    """Return the value that a label gets: `value`, or OTHER if it is one of too many, or no name.

    `label` is the name of the label, such as "tool". All metrics with a label of this name share
    the MAX_VALUES values that came first.
    """
    known = _known_values.setdefault(label, set())
    if value not in known:
        with _known_values_lock:
            if len(known) >= MAX_VALUES or not _NAME.fullmatch(value):
                return OTHER
            known.add(value)
    return value
