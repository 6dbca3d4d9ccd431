"""Stories are data: an invalid story is refused with its place and its fix."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sayso.testing.simulation.profile import (
    STORIES,
    InvalidStories,
    StoryStep,
    load_profiles,
    load_stories,
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "expected the node content"),
        ("stories: {}", "no stories"),
        ("stories: {a: {steps: []}}", "has no steps"),
        ("stories: {a: {weight: -1, steps: [say: 'x {turn}']}}", "weight is -1"),
        ("stories: {a: {weight: 0, steps: [say: 'x {turn}']}}", "nobody would do anything"),
        ("stories: {a: {steps: [sing: 'x {turn}']}}", "is not a step"),
        ("stories: {a: {steps: [say: hello]}}", "must hold {turn}"),
        ("stories: {a: {steps: [ask: '/pay']}}", "must hold {bill}"),
        (
            "stories: {a: {steps: [{ask: '/pay bill={bill}'}, {agree: yes}]}}",
            "put the text in quotes",
        ),
        ("{done: 'Gone.', stories: {a: {steps: [say: 'x {turn}']}}}", "with {bill} in it"),
        ("{done: '({bill}', stories: {a: {steps: [say: 'x {turn}']}}}", "not a regular expression"),
        ("stories: {a: {steps: [agree: 'yes']}}", "nothing was asked yet"),
        ("stories: {a: {steps: [next: rest]}}", "nothing was asked yet"),
        ("stories: {a: {steps: [{ask: '/each pay {bill}'}, {next: bill}]}}", "next is 'bill'"),
        ("stories: {a: {steps: [{ask: '/pay {bill}'}, {next: question}]}}", "no further step"),
        ("stories: {a: {steps: [{say: 'x {turn}', times: 99}]}}", "times is 99"),
        ("stories: {a: {steps: [{say: 'x {turn}', late: true}]}}", "late is True"),
    ],
)
def test_invalid_story_is_refused_with_its_fix(tmp_path: Path, text: str, words: str) -> None:
    """The message names the story and the valid form."""
    file = tmp_path / "stories.yaml"
    file.write_text(text)
    with pytest.raises(InvalidStories, match=re.escape(words)):
        load_stories(file)


def test_profile_plays_only_its_stories() -> None:
    """A profile selects among the shipped stories, and an unknown name is an error."""
    (profile,) = load_profiles("yes")
    assert {story.name for story in load_stories(STORIES, profile.only_stories).stories} == set(
        profile.only_stories
    )
    with pytest.raises(InvalidStories, match="no story 'sings'"):
        load_stories(STORIES, ("sings",))


def test_story_keeps_its_steps_as_written(tmp_path: Path) -> None:
    """A step has a verb, a text and a count."""
    file = tmp_path / "stories.yaml"
    file.write_text(
        "stories: {a: {weight: 2, steps: [{ask: '/pay bill={bill}'}, {agree: button, times: 2}]}}"
    )
    (story,) = load_stories(file).stories
    assert (story.name, story.weight) == ("a", 2)
    assert story.steps == (StoryStep("ask", "/pay bill={bill}"), StoryStep("agree", "button", 2))
