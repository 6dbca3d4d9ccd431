"""`policy.approval`: the YAML says who decides about a call, and each mistake names its cure."""

from __future__ import annotations

from pathlib import Path

import pytest

from sayso.config.settings.loader import ConfigError, load_for_terminal, load_settings
from sayso.config.wiring.agents import tool_policy
from sayso.infra.durations import duration_text
from sayso.pending.approval_rule import (
    ApprovalEscalation,
    ApprovalPlace,
    ApprovalRule,
    Deciders,
)

#: A channel `shop` with one rule, whose keys follow; `team` is on a platform with ids of chats.
YAML = """\
channels:
  shop:
    platform: console
    policy:
      allow: ["*"]
      approval:
        refund_*: {%s}
  team: {platform: slack, bot_token: "${SECRET}", signing_secret: "${SECRET}"}
"""
MANAGERS = Deciders("role", ("manager",))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return the path of a configuration."""
    return tmp_path / "sayso.yaml"


def rule_of(file: Path, keys: str) -> ApprovalRule | None:
    """Return the rule of a refund by a file with these keys, as a policy has it."""
    file.write_text(YAML % keys)
    settings = load_settings(file, {"SECRET": "s3cret"})
    policy = tool_policy(settings.channels["shop"].policy)
    assert policy
    return policy.approval_rule("refund_order")


def refusal(file: Path, keys: str) -> str:
    """Return the error for a file with these keys, without the path of its folder."""
    with pytest.raises(ConfigError) as caught:
        rule_of(file, keys)
    return str(caught.value).removeprefix(f"{file}")


def test_all_keys_reach_the_rule(file):
    """What an operator writes is what an action is signed with."""
    keys = (
        "by: {role: manager}, need: 2, denials: 2, on: {channel: team, chat: C0123ABCD}, "
        "within: 2h, reminder: 30m, escalate: {after: 1h, by: {people: [ana, ben]}}, "
        "reason: on_deny"
    )
    assert rule_of(file, keys) == ApprovalRule(
        by=MANAGERS,
        need=2,
        denials=2,
        on=ApprovalPlace("team", "C0123ABCD"),
        within_seconds=7200,
        reminder_seconds=1800,
        escalation=ApprovalEscalation(3600, Deciders("people", ("ana", "ben"))),
        reason="on_deny",
    )


def test_rule_needs_only_who_decides(file):
    """The defaults are those of the rule itself."""
    assert rule_of(file, "by: {role: manager}") == ApprovalRule(MANAGERS)


@pytest.mark.parametrize(
    ("by", "deciders"),
    [
        ("role manager", MANAGERS),
        ("{role: manager}", MANAGERS),
        ("{role: [manager, director]}", Deciders("role", ("manager", "director"))),
        ("{people: [ana, ben]}", Deciders("people", ("ana", "ben"))),
        ("{people: ana}", Deciders("people", ("ana",))),
        ("anyone_else", Deciders("anyone_else")),
        ("asker", Deciders("asker")),
    ],
)
def test_deciders_may_be_written_in_several_ways(file, by, deciders):
    """The short forms mean the same as the long ones."""
    rule = rule_of(file, f"by: {by}")
    assert rule
    assert rule.by == deciders


def test_channel_alone_means_direct_chats_there(file):
    """A name in place of a section is that of a channel."""
    rule = rule_of(file, "by: role manager, on: team")
    assert rule
    assert rule.on == ApprovalPlace("team")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90.5", 90.5), ("30s", 30), ("30 m", 1800), ("1.5h", 5400), ("3d", 259_200),
     ('"90"', 90), ("${WITHIN:-2h}", 7200)],
)  # fmt: skip
def test_duration_is_seconds_or_has_a_unit(file, text, seconds):
    """Nobody must compute how many seconds two hours are."""
    rule = rule_of(file, f"by: role manager, within: {text}")
    assert rule
    assert rule.within_seconds == seconds


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(30, "30s"), (90, "90s"), (1800, "30m"), (7200, "2h"), (86_400, "1d"), (0.5, "0.5s"),
     (5400.5, "5400.5s")],
)  # fmt: skip
def test_duration_is_shown_as_it_may_be_written(seconds, text):
    """People read back what the YAML may hold."""
    assert duration_text(seconds) == text


APPROVAL = "channels.shop.policy.approval.refund_*"
MISTAKES = {
    "nobody": ("need: 2", f":7:9: {APPROVAL}.by: missing: add it"),
    "unknown key": ("by: asker, needs: 2", f":7:31: {APPROVAL}.needs: unknown key: did you mean 'need'?"),
    "unknown word": (
        "by: managers",
        f":7:20: {APPROVAL}.by: names nobody: write asker, anyone_else, {{role: manager}} or "
        "{people: [ana, ben]} (it is 'managers')",
    ),
    "unknown kind": ("by: {rolle: manager}", f"{APPROVAL}.by.rolle: unknown key: did you mean 'role'?"),
    "two kinds": ("by: {role: a, people: [b]}", f"{APPROVAL}.by: give either role or people, such as"),
    "no kind": ("by: {}", f"{APPROVAL}.by: give either role or people, such as {{role: manager}}"),
    "empty role": ("by: {role: ''}", f"{APPROVAL}.by.role: is empty: give it a value"),
    "no role": ("by: 'role '", f"{APPROVAL}.by: is empty: give it a value"),
    "need of nobody": ("by: role a, need: 0", f"{APPROVAL}.need: must be greater than or equal to 1 (it is 0)"),
    "need of many": ("by: role a, need: 10", f"{APPROVAL}.need: must be less than or equal to 9 (it is 10)"),
    "need of more than there are": (
        "by: {people: [a, b]}, need: 3", f":7:9: {APPROVAL}: need is 3, and only 2 people are named",
    ),
    "asker and more": (
        "by: asker, within: 2h, need: 2",
        f":7:9: {APPROVAL}: the asker decides alone, as without a rule: remove need, within",
    ),
    "asker later": (
        "by: role a, escalate: {after: 1h, by: asker}",
        f":7:9: {APPROVAL}: escalate.by: the person who asks cannot decide later either",
    ),
    "no duration": (
        "by: role a, within: soon",
        f":7:32: {APPROVAL}.within: is no duration: write seconds, such as 90, or a number with s, m, h or d, "
        "such as 30m (it is 'soon')",
    ),
    "true as a duration": ("by: role a, within: true", f"{APPROVAL}.within: is no duration"),
    "unit of a week": ("by: role a, within: 1w", f"{APPROVAL}.within: is no duration"),
    "too long": ("by: role a, within: 15d", f"{APPROVAL}.within: must be less than or equal to 1209600"),
    "no time": ("by: role a, within: 0", f"{APPROVAL}.within: must be greater than 0"),
    "late reminder": (
        "by: role a, within: 1h, reminder: 1h", "reminder is 3600 seconds: it must come before the end, 3600 seconds",
    ),
    "late escalation": (
        "by: role a, within: 1h, escalate: {after: 2h, by: role b}", "escalate.after is 7200 seconds: it must come",
    ),
    "reason": ("by: role a, reason: often", f"{APPROVAL}.reason: must be 'on_deny', 'always' or 'never'"),
    "unknown channel": (
        "by: role a, on: teem", f":7:32: {APPROVAL}.on: names no channel; known: shop, team (it is 'teem')",
    ),
    "unknown channel of a chat": (
        "by: role a, on: {channel: teem, chat: C1}", f"{APPROVAL}.on.channel: names no channel; known: shop, team",
    ),
    "nowhere": ("by: role a, on:", f"{APPROVAL}.on: is empty: give it a value, or leave the key out"),
    "thread alone": ("by: role a, on: {channel: team, thread: '1'}", f"{APPROVAL}.on: a thread is in a chat: add"),
    "chat of another platform": (
        "by: role a, on: {channel: team, chat: '-100'}", f"{APPROVAL}.on.chat: ",
    ),
    "anyone of nowhere": (
        "by: anyone_else, on: team",
        f":7:9: {APPROVAL}: anyone_else needs a chat in which people are asked: write on: "
        "{channel: team, chat: ...}, or leave on out",
    ),
    "anyone of nowhere later": (
        "by: role a, on: team, escalate: {after: 1h, by: anyone_else}", f"{APPROVAL}: anyone_else needs a chat",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_is_reported_with_its_place_and_cure(file, name):
    """A rule that would protect nothing, or could never be fulfilled, stops the start."""
    keys, problem = MISTAKES[name]
    assert problem in refusal(file, keys)


def test_terminal_does_not_need_the_channel_where_others_are_asked(file):
    """`sayso chat` has one channel, whose policy still says who decides."""
    file.write_text(YAML % "by: role manager, on: {channel: team, chat: C0123ABCD}")
    policy = load_for_terminal(file, "shop", {}).channels["shop"].policy
    assert policy
    assert policy.approval["refund_*"].rule == ApprovalRule(MANAGERS)
