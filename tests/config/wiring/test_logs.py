"""Log lines: one JSON object for machines or one line for people, by setting, without secrets."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
import sys
import threading

import pytest
from click.testing import CliRunner
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from redis.exceptions import OutOfMemoryError

from sayso.agent import Agent, AgentConfig, LoggingObserver, ScriptedProvider
from sayso.channels.base import SendError
from sayso.config.settings.loader import ConfigError
from sayso.config.wiring.observability import (
    EventFormatter,
    JsonFormatter,
    add_trace_id,
    name_lines_of_rq,
    set_up_logs,
)
from sayso.infra.concurrency import TimedOut, run_with_timeout
from sayso.infra.redaction import REDACTED, remember
from sayso.infra.tracing import span, start_tracing
from sayso.ops.cli.main import main
from sayso.pending.call_context import context_field
from tests.contracts.rigs import CHAT, Rig
from tests.workers.fakes import Bot

SECRET = 'hush-"quoted"-7Ya'


@pytest.fixture
def lines(print_log) -> io.StringIO:
    """Print the log of this test as JSON."""
    return print_log(JsonFormatter())


def parsed(lines: io.StringIO) -> list[dict[str, object]]:
    """Return the lines. Each is JSON."""
    return [json.loads(line) for line in lines.getvalue().splitlines()]


def record(message: str, **extra: object) -> logging.LogRecord:
    """Return a record with these facts."""
    made = logging.LogRecord("sayso.test", logging.WARNING, "", 0, message, None, None)
    vars(made).update(extra, created=1795726756.25, msecs=250.0)
    return made


def test_secret_is_in_no_line_of_json():
    """It is removed from fields, texts and tracebacks, and the line is still JSON."""
    remember([SECRET])
    made = record(f"refused {SECRET}", reason=f"not {SECRET}", conversation="web:12ab")
    try:
        raise ValueError(SECRET)
    except ValueError:
        made.exc_info = sys.exc_info()
    text = JsonFormatter().format(made)
    line = json.loads(text)
    assert ("hush" in text, text.count(REDACTED)) == (False, 3)
    assert line["exception"].startswith("Traceback")


def test_line_of_json_has_stable_names_and_real_values():
    """Numbers stay numbers, None stays null, and anything else becomes text."""
    made = record(
        "reply.sent", delivery="web:12ab#3", suspect=False, seconds=1.5, seq=7, upto=None, kinds=[1]
    )
    assert json.loads(JsonFormatter().format(made)) == {
        "time": "2026-11-26T20:59:16.250Z", "level": "warning", "message": "reply.sent", "logger": "sayso.test",
        "delivery": "web:12ab#3", "suspect": False, "seconds": 1.5, "seq": 7, "upto": None, "kinds": "[1]",
    }  # fmt: skip


def test_facts_in_a_text_become_fields():
    """A search for the field `run` then finds the line."""
    line = json.loads(JsonFormatter().format(record("model.cut_off run=a3 model=gpt-5-mini")))
    assert (line["message"], line["run"], line["model"]) == ("model.cut_off", "a3", "gpt-5-mini")
    line = json.loads(JsonFormatter().format(record("pending.unknown_intent: taken as ignore")))
    assert line["message"] == "pending.unknown_intent: taken as ignore"


@pytest.mark.parametrize("text", ["{no json", '{"event": 1', '{"event": [', "{}"])
def test_text_that_only_looks_like_json_is_a_message(text: str):
    """It is written as text and not lost."""
    assert json.loads(JsonFormatter().format(record(text)))["message"] == text


def test_facts_about_a_run_become_fields(lines: io.StringIO):
    """The field `event` has the hash of the event id, as in all other lines."""
    with context_field("log_fields", {"conversation": "web:12ab", "seq": 7, "event": "90fe"}):
        Agent([], ScriptedProvider(["hello"]), AgentConfig(observers=[LoggingObserver()])).run("hi")
    begun, *_, ended = parsed(lines)
    assert (begun["message"], ended["message"]) == ("run.run_start", "run.run_end")
    assert (ended["conversation"], ended["seq"], ended["event"]) == ("web:12ab", 7, "90fe")


def test_text_from_outside_begins_no_line():
    """A line break in the words of a platform cannot begin a forged log line."""
    line = EventFormatter().format(
        record("reply.dead", reason="no\n2026-11-20T21:50:00Z INFO redis.resumed")
    )
    assert line.splitlines() == [
        r"2026-11-26T20:59:16Z WARNING reply.dead reason=no\n2026-11-20T21:50:00Z INFO redis.resumed"
    ]


def test_message_with_a_text_from_outside_is_one_line():
    """Such as the error of a vendor that the message of a log record quotes."""
    message = "provider.fallback no\n2026-11-20T21:50:00Z INFO redis.resumed"
    assert EventFormatter().format(record(message)).splitlines() == [
        r"2026-11-26T20:59:16Z WARNING provider.fallback no\n2026-11-20T21:50:00Z INFO redis.resumed"
    ]


def test_lines_of_a_stack_are_kept_and_indented():
    """A text from outside that only looks like a stack begins no line of ours either."""
    line = EventFormatter().format(
        record("loop.blocked", stack="no\n  File x\n2026-11-20T21:50:00Z INFO redis.resumed")
    )
    assert line.splitlines() == [
        "2026-11-26T20:59:16Z WARNING loop.blocked stack=no",
        "    File x",
        "  2026-11-20T21:50:00Z INFO redis.resumed",
    ]


@pytest.mark.parametrize(
    "text", ["up\x1b[A\x1b[2K", "\u2028INFO", "\x85INFO", "\x9b2J", "a\ud800", "\u202etxt"]
)
def test_log_lines_have_no_control_characters(text: str):
    """From facts and from tracebacks, whose lines are indented."""
    made = record("tool.failed", reason=text)
    try:
        raise ValueError(f"{text}\n2026-11-20T21:50:00Z INFO redis.resumed")
    except ValueError:
        made.exc_info = sys.exc_info()
    first, *others = EventFormatter().format(made).split("\n")
    assert (first.isprintable(), all(line.isprintable() for line in others)) == (True, True)
    assert [line for line in others if not line.startswith("  ")] == []


def test_fact_does_not_replace_a_standard_field_of_its_name():
    """A tool may log such a fact."""
    line = json.loads(
        JsonFormatter().format(record("mine", level="none", time="never", logger="not me"))
    )
    assert (line["level"], line["logger"], line["time"][:4]) == ("warning", "sayso.test", "2026")


def test_each_line_is_json_whatever_its_facts():
    """Also with NaN, which JSON lacks, with long texts, which are shortened, and with wrong arguments, which are left
    out.
    """
    made = record("%s and %s", seconds=float("nan"), reason="x" * 10**6)
    made.args = (SECRET,)
    text = JsonFormatter().format(made)
    line = json.loads(text, parse_constant=pytest.fail)
    assert (line["message"], line["seconds"], len(text) < 11_000) == ("%s and %s", "nan", True)
    assert "%s and %s seconds=nan" in EventFormatter().format(made)


def test_secret_of_several_lines_is_in_no_traceback():
    """For example a private key. It is replaced before lines are indented and long texts are shortened."""
    remember([key := "-----BEGIN KEY-----\nhush-hush\n-----END KEY-----"])
    made = record("tool.failed", reason=f"{'x' * 4990}{key}{'y' * 6000}")
    try:
        raise ValueError(key)
    except ValueError:
        made.exc_info = sys.exc_info()
    for formatter in (EventFormatter(), JsonFormatter()):
        text = formatter.format(made)
        assert [word for word in ("hush", "BEGIN", "END KEY") if word in text] == []


def test_terminal_shows_the_level_in_color():
    """The rest of the line has no color."""
    line = EventFormatter(color=True).format(record("reply.dead", delivery="web:12ab#3"))
    assert line == "2026-11-26T20:59:16Z \x1b[33mWARNING\x1b[0m reply.dead delivery=web:12ab#3"


@pytest.mark.parametrize(
    "args", [["worker", "--log-format", "xml"], ["web", "--log-level", "loud"]]
)
def test_unknown_choice_is_refused(args: list[str]):
    """One line names the value and what is possible."""
    done = CliRunner().invoke(main, args)
    assert done.exit_code == 2
    assert f"'{args[-1]}' is not one of" in done.output


def test_unknown_choice_of_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch):
    """A command reports wrong usage. Gunicorn, which reads no options of ours, gets a ConfigError."""
    monkeypatch.setenv("SAYSO_LOG_FORMAT", "xml")
    done = CliRunner().invoke(main, ["worker"])
    assert (done.exit_code, "SAYSO_LOG_FORMAT" in done.output) == (2, True)
    with pytest.raises(ConfigError, match="SAYSO_LOG_FORMAT is 'xml': write pretty or json"):
        set_up_logs()


def test_tool_that_ends_late_names_its_turn(lines: io.StringIO):
    """The turn was over when the tool returned."""
    release, logged = threading.Event(), threading.Event()

    class Notice(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "ended_late" in record.getMessage():
                logged.set()

    logging.getLogger().addHandler(notice := Notice())  # it is called after that of `lines`
    try:
        with (
            context_field("log_fields", {"conversation": "web:12ab", "seq": 7}),
            pytest.raises(TimedOut),
        ):
            asyncio.run(run_with_timeout(release.wait, 0.01))
        release.set()
        assert logged.wait(10)
    finally:
        logging.getLogger().removeHandler(notice)
    begun, ended = (line for line in parsed(lines) if str(line["message"]).startswith("tool."))
    assert (begun["message"], ended["message"]) == ("tool.left_running", "tool.ended_late")
    assert [(line["conversation"], line["seq"]) for line in (begun, ended)] == [("web:12ab", 7)] * 2


def test_lines_about_an_action_have_its_id(lines: io.StringIO):
    """From the turn that proposed it to the failure inside it. Each line also has the job that woke the worker."""
    bot = Bot(Rig(), "A")
    bot.broken.add("A")
    for job, text in (("process-1", "delete A"), ("process-2", "yes")):
        bot.hear(text)
        with context_field("log_fields", {"job": job}):  # as SaysoWorker does
            asyncio.run(bot.processor.run(CHAT.id))
    named = [line for line in parsed(lines) if line.get("action")]
    assert [line["message"] for line in named] == [
        "turn.answered",
        "reply.sent",
        "pending.started",
        "pending.failed",
    ]
    assert len({line["action"] for line in named}) == 1
    assert [line["job"] for line in named] == ["process-1", "process-1", "process-2", "process-2"]


def test_line_inside_a_span_has_its_trace_id():
    """It leads to the trace in a dashboard. Without tracing the field is left out."""
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    start_tracing(provider)
    inside, outside = record("turn.answered"), record("turn.answered")
    with span("turn web"):
        add_trace_id(inside)
    add_trace_id(outside)
    (sent,) = spans.get_finished_spans()
    assert json.loads(JsonFormatter().format(inside))["trace_id"] == f"{sent.context.trace_id:032x}"
    assert "trace_id" not in JsonFormatter().format(outside)


def test_line_about_a_reply_names_the_trace_of_its_turn(lines: io.StringIO):
    """Also a line that is logged before or after the span of sending."""
    start_tracing(TracerProvider())
    bot = Bot(Rig(), lines=["hello"])
    bot.channel.errors = [SendError("blocked")]
    bot.say("hi")
    dead = next(line for line in parsed(lines) if line["message"] == "reply.dead")
    assert re.fullmatch("[0-9a-f]{32}", str(dead["trace_id"]))


def test_lines_of_rq_are_an_event_of_ours():
    """RQ writes sentences, with a traceback of the client for a Redis that has no memory."""
    made = record("Worker %s: %s cleanup failed", job="j1")
    made.name, made.args = "rq.registry", ("w1", "StartedJobRegistry")
    try:
        raise OutOfMemoryError("command not allowed when used memory > 'maxmemory'")
    except OutOfMemoryError:
        made.exc_info = sys.exc_info()
    for _ in range(2):  # two handlers print it
        assert name_lines_of_rq(made)
    line = json.loads(JsonFormatter().format(made))
    assert (line["message"], line["says"]) == (
        "rq.reported",
        "Worker w1: StartedJobRegistry cleanup failed",
    )
    assert (line["reason"], "exception" in line) == ("OutOfMemoryError", False)


def test_every_process_names_the_lines_of_rq(capsys: pytest.CaptureFixture[str]):
    """The filter is part of what each command sets up; other libraries keep their words."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    try:
        set_up_logs()
        logging.getLogger("rq.worker").error("Worker w1: found an unhandled exception, quitting...")
        logging.getLogger("rqx").warning("a library's own words")
    finally:
        root.handlers, root.level = handlers, level
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith(
        "ERROR rq.reported says=Worker w1: found an unhandled exception, quitting..."
    )
    assert second.endswith("WARNING a library's own words")
