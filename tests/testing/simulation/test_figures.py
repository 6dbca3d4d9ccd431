"""The figures of simulations: time to the first sign of life, memory, and the profiles that promise limits."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from sayso.testing.simulation.judge import SimulationResult
from sayso.testing.simulation.profile import Profile
from sayso.testing.simulation.report import Memory, ProcessMemory, SimulationReport
from sayso.testing.simulation.users import Act, ChatInbox, follow_typing_signs
from tests.testing.simulation.test_conversations import judged


def test_first_sign_of_life_is_typing_or_the_answer() -> None:
    """The time counts from the webhook's 200, and only without a pending earlier answer."""
    say, ask = Act(1, "say", "", 1.0, accepted_at=1.5), Act(2, "ask", "b2", 4.5, accepted_at=4.6)
    answers: list[Any] = ["You said: t1", "Pay b2\n\nReply *yes* or *no*, within 5 minutes."]
    assert judged([say, ask], answers).picked_up == pytest.approx([2.5, 0.4])
    assert judged([say, ask], answers, signs=[2.0, 4.7]).picked_up == pytest.approx([0.5, 0.1])
    at_once = Act(2, "ask", "b2", 2.0, accepted_at=2.1)
    assert judged([say, at_once], answers).picked_up == pytest.approx([2.5])


def test_typing_is_followed_on_every_platform_that_shows_it() -> None:
    """Other calls and other chats give no sign of life."""
    ada = ChatInbox()
    grace = ChatInbox()
    linus = ChatInbox()
    calls = [
        {"method": "sendChatAction", "params": {"chat_id": 5}},
        {"method": "assistant.threads.setStatus", "params": {"channel_id": "C1"}},
        {
            "method": "agents.sessions.setStatus",
            "params": {"channel_id": "C2", "status": "processing"},
        },
        {"method": "agents.sessions.setStatus", "params": {"channel_id": "C2", "status": "active"}},
        {"method": "answerCallbackQuery", "params": {"callback_query_id": "1"}},
        {"method": "sendChatAction", "params": {"chat_id": 6}},
    ]

    async def look() -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(
                follow_typing_signs(lambda: calls, {"5": ada, "C1": grace, "C2": linus}), 0.001
            )

    asyncio.run(look())
    assert (len(ada.signs), len(grace.signs), len(linus.signs)) == (1, 1, 1)


@pytest.mark.parametrize(
    ("figures", "exceeded"),
    [
        ("", []),
        ("size", ["bytes of Redis for each conversation: 4,000, and 3,072 is promised"]),
        (
            "speed",
            [
                "milliseconds in which 99 % of webhooks were answered: 200, and 100 is promised",
                "milliseconds to the first sign of life for 99 %: 900, and 500 is promised",
                "MB by which a process grew: 60, and 50 is promised",
                "turns a second below the rate: 40, and 0 is promised",
            ],
        ),
    ],
)
def test_speed_and_size_are_promises_only_of_their_profiles(
    figures: Any, exceeded: list[str]
) -> None:
    """Other profiles only report the figures."""
    found = SimulationResult(turns=500, picked_up=[0.9])
    memory = Memory(
        [ProcessMemory("worker 0", 100.0, 160.0), ProcessMemory("web 0", 60.0, 50.0)], 4000.0
    )
    profile = Profile(turns_per_second=100.0, measures=figures)
    assert (
        SimulationReport(
            profile, found, 0, webhook_seconds=[0.2], memory=memory, seconds=10.0
        ).exceeded
        == exceeded
    )


def test_acts_waiting_at_a_kill_of_redis_are_answered_soon() -> None:
    """The figure is the longest wait of the acts before the kill; later acts do not count."""
    found = SimulationResult(answered=[(0.0, 4.9), (1.0, 16.5), (4.0, 8.0), (6.0, 30.0)])
    report = SimulationReport(Profile(measures="recovery"), found, 0, killed_at={"redis": [5.0]})
    assert report.exceeded == [
        "seconds to answer all that waited when redis was killed: 12, and 10 is promised"
    ]
    assert SimulationReport(Profile(), found, 0, killed_at={"redis": [5.0]}).exceeded == []
    idle = SimulationReport(
        Profile(measures="recovery"), found, 0, killed_at={"redis": [5.0, 40.0], "machine": [40.0]}
    ).exceeded
    assert idle[0].startswith("waiting when machine is killed: never happened")


@pytest.mark.parametrize(
    ("machines", "exceeded"), [(1, ["repeated: 20 of 10000 replies, above 0.1%"]), (2, [])]
)
def test_limit_of_one_repetition_in_a_thousand_applies_to_one_machine(
    machines: int, exceeded: list[str]
) -> None:
    """One machine records receipts in its folder; several machines may repeat as often as the faults explain."""
    found = SimulationResult(replies=10_000, repeated=20)
    assert (
        SimulationReport(Profile(machines=machines), found, interruptions=30).exceeded == exceeded
    )


def test_wait_ends_with_a_file_that_comes_before_its_text() -> None:
    """Both answer the act, in any order."""
    want = Act(1, "want", "", 1.0)
    file = {"text": "", "media": {"filename": "t1.png"}, "at": 2.0}
    text = {"text": "You said: t1", "media": None, "at": 4.0}
    result = judged([want], [file, text])
    assert (result.findings, result.waits) == ([], [1.0])
