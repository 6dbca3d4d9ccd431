"""Places on Slack: a chat, a person or a file after the id of its workspace."""

from __future__ import annotations

import pytest

from sayso.channels.slack.address import SlackPlace, is_user, join_place, split_place


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("T01/C02", SlackPlace("T01", "C02")),
        ("E01/U03", SlackPlace("E01", "U03")),
        ("C02", SlackPlace("", "C02")),
        ("T01/https://files.slack.com/a/b", SlackPlace("T01", "https://files.slack.com/a/b")),
        ("https://files.slack.com/a/b", SlackPlace("", "https://files.slack.com/a/b")),
    ],
)
def test_place_is_split_and_joined_again(text: str, place: SlackPlace):
    """Only what begins with the id of a workspace names one."""
    assert split_place(text) == place
    assert join_place(*place) == text


def test_person_is_recognized_in_a_workspace():
    """A team's id begins with another letter than a person's, and must not hide what follows it."""
    assert [is_user(chat) for chat in ("U03", "T01/U03", "T01/W03", "T01/C03", "C03")] == [
        True,
        True,
        True,
        False,
        False,
    ]
