"""Linear work: text of any author costs time in proportion to its length, wherever a pattern meets it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sayso.agent.channel.questions import short_effect
from sayso.agent.guards.argument_patterns import (
    MAX_READ_CHARS,
    _address_parts,
    matches_form,
    matches_text,
)
from sayso.agent.guards.guardrails import PatternGuardrail, TopicGuardrail
from sayso.agent.guards.policy import ToolPolicy
from sayso.agent.messages import without_notes
from sayso.agent.providers.reasoning import ReasoningFilter
from sayso.agent.toolbox.text import text_stats
from sayso.agent.tools.previews import literal
from sayso.agent.tools.result_texts import result_text
from sayso.agent.tools.screening import fenced, suspicions, unfenced
from sayso.channels.i18n.invisible import readable
from sayso.channels.i18n.texts import as_statement, brief
from sayso.channels.mentions import without_mentions
from sayso.channels.slack.incoming_text import readable as readable_in_slack
from sayso.infra.redaction import Redactor
from sayso.pending import RegexConfirmParser
from sayso.pending.action import PendingAction
from sayso.pending.consent.parser import is_unclear, read_answer
from sayso.pending.result_words import json_in_words, result_in_words

HOSTILE = "*a*a*a*b*c*@x"
#: Pieces of which long hostile texts are made.
PIECES = (
    "a",
    " ",
    "\n",
    "[\n",
    "{\n",
    "[1\n",
    "[]\n",
    "@",
    '"',
    "(a",
    "<a",
    "a@",
    "../",
    "xn--a",
    "yes ",
    "<<<data a>>>\n",
    "<@",
    "¿?",
    "1,",
    ".",
    "<think>",
    "a:",
)
#: What an address was before it was found in linear time.
ADDRESS = re.compile(r"(\"[^\"]*\"|[^\s<>()\[\],;:\"'@]+)\s*@\s*([^\s<>(),;:\"'@?&]+)")
PARSER = RegexConfirmParser(("en", "de"))
REDACTOR = Redactor()
REDACTOR.remember(["aaaaaaaaaaaaab", "a secret value"])


def in_pieces(text: str) -> None:
    """Read a text as an answer that arrives in pieces of a few characters."""
    reading = ReasoningFilter()
    for start in range(0, len(text), 10):
        reading.feed(text[start : start + 10])
    reading.end()


READERS: dict[str, Callable[[str], Any]] = {
    "deny_when, text": lambda text: matches_text(text, HOSTILE),
    "deny_when, name": lambda text: fnmatchcase(text, HOSTILE),
    **{
        f"deny_when, {form}": lambda text, form=form: matches_form(form, text, HOSTILE)
        for form in ("email", "domain")
    },
    "deny_when, path": lambda text: matches_form("path", text, "/etc/*"),
    "deny_when, number": lambda text: matches_form("number", text, ">5"),
    "consent": lambda text: (read_answer(PARSER, text, "en"), is_unclear(PARSER, text, "en")),
    "screening": suspicions,
    "fence": lambda text: unfenced(fenced(text)),
    "no fence": unfenced,
    "guardrails": lambda text: [
        guard.check(text) for guard in (TopicGuardrail(["war"]), PatternGuardrail(["secret"]))
    ],
    "redaction": REDACTOR.redact,
    "preview": lambda text: (literal(text), brief(text), as_statement(text)),
    "button": lambda text: short_effect(PendingAction("u", "k", text)),
    "readable": readable,
    "result": result_text,
    "history": without_notes,
    "words": result_in_words,
    "words of an error": lambda text: json_in_words(text, is_quoted=True),
    "text tools": text_stats,
    "reasoning": in_pieces,
    "slack": lambda text: readable_in_slack(text, "U0BOT"),
    "mentions": lambda text: without_mentions(
        text, [(at, at + 1) for at in range(0, min(len(text), 2000), 2)]
    ),
}


def seconds(read: Callable[[str], Any], text: str) -> float:
    """Return the CPU time of this thread that reading the text takes."""
    began = time.thread_time()
    read(text)
    return time.thread_time() - began


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_work_grows_with_the_text_and_not_with_its_square(name: str):
    """Eight times the text takes about eight times the work: a quadratic reader takes 64 times."""
    read = READERS[name]
    for piece in PIECES:
        short, long = (f"{piece * (size // len(piece))}x" for size in (6_000, 48_000))
        # Below two milliseconds the clock says nothing about growth, and no person waits.
        limit = 28 * max(min(seconds(read, short), seconds(read, short)), 0.002)
        # A machine that does something else may take long once, a quadratic reader does always.
        assert any(seconds(read, long) < limit for _ in range(3)), piece


@given(st.text(alphabet='ab@" ?&<>.,:[]()\n', max_size=20))
def test_addresses_are_found_as_a_regular_expression_finds_them(text: str):
    """From left to right, without overlap, with quoted names and any white space around the @."""
    assert list(_address_parts(text)) == ADDRESS.findall(text)


def test_argument_that_is_too_long_to_be_read_is_denied():
    """Nothing slips past a rule by its length."""
    rule = {"tool": "send", "arg": "to", "pattern": "*@x.com"}
    policy = ToolPolicy(allow=["*"], deny_when=[rule])
    half = "a" * (MAX_READ_CHARS // 2)
    assert policy.evaluate("send", {"to": half}).decision == "allow"
    denied = policy.evaluate("send", {"to": [half, half, "a"]})
    assert (denied.decision, denied.reason) == (
        "deny",
        "'to' is longer than the 1,000,000 characters that a rule reads",
    )
    assert policy.evaluate("read", {"to": half * 3}).decision == "allow"
