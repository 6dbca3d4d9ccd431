"""What operators see of actions that other people decide: log lines, counters and gauges."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sayso.channels.base import AddressClosed
from sayso.infra import tracing
from sayso.infra.metrics import REGISTRY
from sayso.pending.approval_rule import (
    MAX_WITHIN_SECONDS,
    ApprovalEscalation,
    ApprovalPlace,
    ApprovalRule,
    Deciders,
)
from sayso.pending.audit.collector import AuditCollector
from sayso.pending.audit.ledger import FILE, AuditLedger
from sayso.pending.stored_limits import MAX_WAITING_MS
from tests.agent.channel.shop import ANA, GROUP, MANAGERS, Shop
from tests.agent.channel.test_approvals import code_of
from tests.pending.state_log import SIGNER

TWO = replace(MANAGERS, need=2)
IN_GROUP = replace(MANAGERS, on=ApprovalPlace("team", "C1"))
HOUR = 3600.0


@pytest.fixture
def lines(caplog) -> Callable[[], list[tuple[str, dict]]]:
    """Return a function that returns the lines about requests, votes and approvals so far."""
    caplog.set_level(logging.INFO)
    standard = set(vars(logging.makeLogRecord({}))) | {"message", "asctime"}

    def found() -> list[tuple[str, dict]]:
        kinds = ("request.", "vote.", "approval.")
        return [
            (each.msg, {name: v for name, v in vars(each).items() if name not in standard})
            for each in caplog.records
            if str(each.msg).startswith(kinds)
        ]

    return found


@pytest.fixture
def grown(tmp_path) -> Callable[..., float]:
    """Return a function that says by how much a sample has grown since the test began."""
    before = {
        (each.name, *sorted(each.labels.items())): each.value
        for family in REGISTRY.collect()
        for each in family.samples
    }

    def growth(shop: Shop, name: str, **labels: str) -> float:
        AuditCollector(shop.rig.client, AuditLedger(tmp_path / FILE, SIGNER)).collect()
        now = REGISTRY.get_sample_value(name, labels) or 0.0
        return now - before.get((name, *sorted(labels.items())), 0.0)

    return growth


def waiting(shop: Shop) -> tuple[int, int]:
    """Return how many actions wait for others, and the age of the oldest in milliseconds."""
    counted = 0
    oldest = 0
    for answer in shop.rig.scripts.on_every_shard("measure", {"most": 5}):
        numbers = json.loads(answer)
        counted += numbers["approvals"]
        oldest = max(oldest, numbers["oldest_approval"])
    return counted, oldest


def test_each_step_is_logged_with_its_ids(lines):
    """One grep for the action shows who was asked, each vote and the decision."""
    shop = Shop(30, rule=TWO)
    shop.ask()
    shop.tap("bea", shop.request("bea")[0])
    shop.say("cem", "yes", replied_to=shop.message_of("cem"))
    action_id = shop.home_action().action_id
    found = lines()
    assert [event for event, _ in found] == [
        "request.sent",
        "request.sent",
        "vote.sent",
        "vote.counted",
        "vote.sent",
        "vote.counted",
        "approval.decided",
    ]
    assert {facts["action"] for _, facts in found} == {action_id}
    requests = {facts["request"] for event, facts in found if event == "request.sent"}
    counted = [facts for event, facts in found if event == "vote.counted"]
    assert {facts["request"] for facts in counted} == requests
    assert [(each["answer"], each["form"], each["yes"], each["need"]) for each in counted] == [
        ("yes", "tap", 1, 2),
        ("yes", "words", 2, 2),
    ]
    assert found[-1][1]["outcome"] == "approved"


def test_no_line_has_what_people_said(lines, caplog):
    """Neither a reason nor a name, also not in other lines."""
    shop = Shop(30)
    shop.ask()
    shop.say("bea", f"no {code_of(shop, 'bea')} far too expensive")
    assert ("approval.decided", "denied") in [
        (event, facts.get("outcome")) for event, facts in lines()
    ]
    said = str([vars(each) for each in caplog.records])
    assert "expensive" not in said
    assert "Refund 30" not in said


def test_refused_answers_are_logged_and_counted_by_reason(lines, grown):
    """A stranger, the asker, another person's button, and an answer that is too late."""
    shop = Shop(30, rule=IN_GROUP)
    shop.ask()
    yes = shop.request("C1")[0]
    shop.tap("dan", yes, GROUP, in_group=True)
    shop.tap("ana", yes, GROUP, in_group=True)
    shop.tap("cem", yes, GROUP, in_group=True)
    shop.tap("bea", yes, GROUP, in_group=True)
    refused = [facts["reason"] for event, facts in lines() if event == "vote.refused"]
    assert refused == ["not_a_decider", "own_request", "over"]
    for reason in refused:
        name = "sayso_votes_refused_total"
        assert grown(shop, name, channel="team", reason=reason) == 1, reason


def test_forged_vote_is_an_error(lines, grown):
    """Somebody has changed a turn in Redis."""
    shop = Shop(30)
    shop.ask()
    shop.hear(replace(GROUP, chat="bea"), "bea", tap=shop.request("bea")[0].data)
    shop.work(replace(GROUP, chat="bea"))
    shop.forge_inbox('\\"answer\\": \\"yes\\"', '\\"answer\\": \\"yes\\", \\"words\\": \\"x\\"')
    shop.work()
    assert "vote.tampered" in [event for event, _ in lines()]
    assert grown(shop, "sayso_votes_refused_total", channel="shop", reason="tampered") == 1


def test_decision_counts_with_its_votes_and_its_time(grown):
    """The requests are no actions that somebody answered."""
    shop = Shop(30, rule=TWO)
    shop.ask()
    shop.rig.pass_time(HOUR / 2)
    shop.tap("bea", shop.request("bea")[0])
    shop.say("cem", "yes", replied_to=shop.message_of("cem"))
    assert grown(shop, "sayso_approvals_total", channel="shop", outcome="approved") == 1
    assert grown(shop, "sayso_votes_total", channel="team", answer="yes", form="tap") == 1
    assert grown(shop, "sayso_votes_total", channel="team", answer="yes", form="words") == 1
    assert grown(shop, "sayso_approval_seconds_count", channel="shop") == 1
    assert HOUR / 2 <= grown(shop, "sayso_approval_seconds_sum", channel="shop") < HOUR
    assert grown(shop, "sayso_pending_answer_seconds_count", channel="shop") == 0
    assert grown(shop, "sayso_pending_actions_total", channel="shop", state="armed") == 1
    assert grown(shop, "sayso_pending_actions_total", channel="team", state="armed") == 0
    assert grown(shop, "sayso_pending_actions_total", channel="shop", state="voted") == 0


def test_no_counts_as_denied(grown):
    """A cancelled action is denied where a vote decided it."""
    shop = Shop(30)
    shop.ask()
    shop.tap("bea", shop.request("bea")[1])
    assert grown(shop, "sayso_approvals_total", channel="shop", outcome="denied") == 1
    assert grown(shop, "sayso_approvals_total", channel="shop", outcome="withdrawn") == 0
    assert grown(shop, "sayso_approval_seconds_count", channel="shop") == 1


def test_withdrawal_and_expiry_are_no_decisions(lines, grown):
    """Both are counted, and none has a time."""
    shop = Shop(30, 30, rule=replace(MANAGERS, within_seconds=HOUR))
    shop.ask()
    shop.hear(ANA, "ana", tap=shop.notice_button().data)
    shop.work()
    shop.ask()
    shop.later(HOUR + 5)
    outcomes = [facts["outcome"] for event, facts in lines() if event == "approval.decided"]
    assert outcomes == ["withdrawn", "expired"]
    for outcome in outcomes:
        assert grown(shop, "sayso_approvals_total", channel="shop", outcome=outcome) == 1
    assert grown(shop, "sayso_approval_seconds_count", channel="shop") == 0


def test_nobody_can_be_reached(lines, grown):
    """Each request that did not arrive has a line, and the end is a warning."""
    shop = Shop(30)
    shop.team.errors = [AddressClosed("blocked"), AddressClosed("blocked")]
    shop.ask()
    events = [event for event, _ in lines()]
    assert events.count("request.undelivered") == 2
    assert "approval.unreachable" in events
    assert grown(shop, "sayso_approvals_total", channel="shop", outcome="unreachable") == 1


def test_nobody_has_the_role(lines, grown):
    """No action is stored, so the line names the tool."""
    shop = Shop(30)
    for name in ("bea", "cem"):
        shop.directory.set(name, roles=frozenset())
    shop.ask()
    ((event, facts),) = lines()
    assert (event, facts["tool"]) == ("approval.unreachable", "refund")
    assert grown(shop, "sayso_approvals_total", channel="shop", outcome="unreachable") == 1


def test_reminder_and_escalation_are_logged(lines):
    """With how many people they went to."""
    rule = ApprovalRule(
        MANAGERS.by,
        within_seconds=4 * HOUR,
        reminder_seconds=HOUR,
        escalation=ApprovalEscalation(2 * HOUR, Deciders("people", ("dan",))),
    )
    shop = Shop(30, rule=rule)
    shop.ask()
    shop.later(HOUR + 5)
    shop.later(HOUR + 5)
    found = dict(lines())
    assert found["request.reminded"]["requests"] == 2
    assert found["request.escalated"]["requests"] == 1


def test_unavailable_group_is_logged(lines):
    """The reason is the platform's, and the answer is refused."""
    shop = Shop(30)
    shop.ask()
    shop.directory.is_down = True
    shop.tap("bea", shop.request("bea")[0])
    found = dict(lines())
    assert found["request.directory_unavailable"]["reason"] == "down"
    assert found["vote.refused"]["reason"] == "directory_unavailable"


def test_actions_that_wait_for_others_are_counted():
    """From the notice to the end, with the age of the oldest."""
    shop = Shop(30, 40)
    assert waiting(shop) == (0, 0)
    shop.ask()
    shop.rig.pass_time(HOUR)
    shop.ask()
    count, oldest_ms = waiting(shop)
    assert count == 2
    assert HOUR * 1000 <= oldest_ms < 2 * HOUR * 1000
    shop.tap("bea", shop.request("bea")[0])
    assert waiting(shop)[0] == 1
    shop.hear(ANA, "ana", "/reset")
    shop.work()
    assert waiting(shop) == (0, 0)


def test_forgotten_action_is_not_counted_for_ever():
    """The list keeps an action for as long as the longest rule."""
    assert MAX_WAITING_MS == MAX_WITHIN_SECONDS * 1000
    shop = Shop(30, 40)
    shop.ask()
    (key,) = shop.rig.client.scan_iter("sayso:*:waiting_for_others")
    shop.rig.client.zadd(key, {"forgotten": 1})
    shop.ask()
    assert waiting(shop)[0] == 2


@pytest.fixture
def spans() -> Iterator[Callable[[str], list[ReadableSpan]]]:
    """Trace, and return a function that returns the finished spans of a name."""
    memory, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    tracing.start_tracing(provider)
    yield lambda name: [span for span in memory.get_finished_spans() if span.name == name]
    tracing.stop_tracing()


def linked(span: ReadableSpan) -> list[int]:
    """Return the ids of the spans that a span links to."""
    return [link.context.span_id for link in span.links]


def test_one_trace_goes_from_the_tap_to_the_effect(spans):
    """The requests belong to the trace of the question, and the tap and the vote link to it."""
    shop = Shop(30)
    shop.ask()
    with tracing.span("accept the tap"):
        shop.hear(
            replace(GROUP, chat="bea"),
            "bea",
            tap=shop.request("bea")[0].data,
            trace=tracing.current_trace(),
        )
    shop.work()
    (accepted,) = spans("accept the tap")
    asked, counted = spans("turn shop")
    (tapped,) = spans("turn team")
    trace_id = accepted.context.trace_id
    assert tapped.context.trace_id == counted.context.trace_id == trace_id
    assert counted.parent.span_id == tapped.context.span_id
    assert linked(tapped) == linked(counted) == [asked.context.span_id]
    (confirmed,) = spans("confirm action")
    assert confirmed.parent.span_id == counted.context.span_id

    sent = {span.context.trace_id for span in spans("send team")}
    assert sent == {asked.context.trace_id, trace_id}  # the requests, and their ends
    forwarded = {span.context.trace_id for span in spans("forward reply")}
    assert forwarded == sent


def test_end_of_the_time_links_to_the_question(spans):
    """It begins a trace: the question was asked a day before."""
    shop = Shop(30, rule=replace(MANAGERS, within_seconds=HOUR))
    shop.ask()
    shop.later(HOUR + 5)
    asked, ended = spans("turn shop")
    assert ended.context.trace_id != asked.context.trace_id
    assert linked(ended) == [asked.context.span_id]
