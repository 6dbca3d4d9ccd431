"""A worker process asks a vendor's model over HTTP: tools, a confirmed action, remembered facts and the budget."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sayso.channels.i18n.catalogue import catalogue
from sayso.channels.types import Conversation
from tests.agent.providers.api import KEY
from tests.agent.providers.conftest import Server, process
from tests.flows.system import System, WhatsAppPerson

__all__ = ["process"]

AGENT = """
agent:
  model: openai:gpt-4o-mini
  api_key: ${{OPENAI_API_KEY}}
  base_url: {url}/v1
  max_retries: 0
  memory: {{knowledge: true}}
  budget: {{conversation_tokens: {most}}}
"""


@pytest.fixture(scope="module")
def asked(process: Server) -> Iterator[System]:
    """Run one worker whose model is the fake server's, with a budget of four requests of 120 tokens."""
    with tempfile.TemporaryDirectory(prefix="sayso-mod-") as folder:
        system = System(Path(folder), workers=1, environ={"OPENAI_API_KEY": KEY})
        agent = AGENT.format(url=process.url, most=500)
        text = system.config.read_text().replace("agent: {model: offline}", agent)
        system.config.write_text(text)
        with system as running:
            yield running


def test_yes_runs_the_models_tool_call_once_and_the_model_goes_on(
    asked: System, process: Server
) -> None:
    """No model call decides whether the person agreed. The outcome and what the model says of it are one message."""
    process.script(
        {"calls": [{"name": "find_invoice", "arguments": {"query": "INV-42"}, "id": "a"}]},
        {"calls": [{"name": "delete_invoice", "arguments": {"invoice_id": "INV-42"}, "id": "b"}]},
        {"text": "Shall I look for others?"},
    )
    person = WhatsAppPerson(asked, 61)
    person.say("get rid of 42")
    assert "INV-42" in person.hears()[0]["text"]
    assert asked.effects("delete", "INV-42") == 0
    person.say("yes")
    (rest,) = person.hears()
    outcome, _, words = rest["text"].split("\n\n")
    assert outcome.startswith("✅ Done: Delete invoice INV-42 (")
    assert outcome.endswith("\nInvoice INV-42 is deleted.")
    assert words == "Shall I look for others?"
    assert (asked.effects("delete", "INV-42"), len(process.calls)) == (1, 3)
    assert "INV-42" in next(
        each["content"] for each in process.bodies[1]["messages"] if each["role"] == "tool"
    )
    assert [each["role"] for each in process.bodies[2]["messages"]][-2:] == ["assistant", "tool"]


def test_remembered_fact_belongs_to_one_person(asked: System, process: Server) -> None:
    """The policy does not list `remember`, so no yes is needed; only the same person's next turn knows the fact."""
    process.script(
        {"calls": [{"name": "remember", "arguments": {"content": "The user likes tea"}, "id": "c"}]},
        {"text": "Noted."}, {"text": "Tea."}, {"text": "I do not know."},
    )  # fmt: skip
    ana, bob = WhatsAppPerson(asked, 62), WhatsAppPerson(asked, 63)
    for person, said in (
        (ana, "Remember that I like tea"),
        (ana, "What do I like?"),
        (bob, "What do I like?"),
    ):
        person.say(said)
        person.hears()
    knows = ["likes tea" in body["messages"][0]["content"] for body in process.bodies]
    assert knows == [False, False, True, False]


def test_model_failure_gets_a_fitting_reply_and_the_operator_finds_the_cause(
    asked: System, process: Server
) -> None:
    """Status, vendor's code and model stand in the worker's log at error level, and beside the failed reply."""
    person = WhatsAppPerson(asked, 66)
    failures = (
        (
            {"status": 429, "code": "rate_limit_exceeded"},
            "model_busy",
            "kind=busy status=429 code=rate_limit_exceeded",
        ),
        (
            {"status": 401, "message": "no"},
            "model_no_access",
            "kind=no_access status=401 code=invalid_request_error",
        ),
        ({"text": ""}, "model_away", "kind=empty"),
    )
    for step, words, _ in failures:
        process.script(step)
        person.say("hello")
        assert person.hears()[0]["text"] == catalogue("en")[words]
    shown = asked.printed("deliveries", "show", Conversation("shop-wa", person.user_id).id)
    logged = [line for line in asked.log.read_text().splitlines() if "model.failed" in line]
    assert all("ERROR" in line.upper() for line in logged)
    for _, _, cause in failures:
        assert f"{cause} model=gpt-4o-mini" in shown
        assert sum(f"{cause} model=gpt-4o-mini" in line for line in logged) == 1


def test_refused_or_unfinished_answer_is_marked(asked: System, process: Server) -> None:
    """The person gets the model's own refusal, and a mark under an answer that reached its length limit."""
    person = WhatsAppPerson(asked, 67)
    process.script(
        {"refusal": "I do not talk about that."}, {"text": "One, two,", "finish": "length"}
    )
    person.say("something bad")
    assert person.hears()[0]["text"] == "I do not talk about that."
    person.say("count")
    assert person.hears()[0]["text"] == "One, two,\n\n" + catalogue("en")["answer_cut"]


def test_spent_daily_budget_is_reported_without_a_model_call(
    asked: System, process: Server
) -> None:
    """Redis counts the budget of each conversation separately."""
    process.script(*[{"text": "Hello.", "usage": [500, 20, 0]}] * 2)
    ana, bob = WhatsAppPerson(asked, 64), WhatsAppPerson(asked, 65)
    ana.say("hello")
    assert ana.hears()[0]["text"] == "Hello."
    ana.say("hello again")
    assert ana.hears()[0]["text"] != "Hello."
    bob.say("hello")
    assert bob.hears()[0]["text"] == "Hello."
    assert len(process.calls) == 2
