"""Stories: what people do, as data: a YAML file of steps."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from sayso.config.simulation.verdict import DONE

#: What one step is; stories.yaml says what each means.
Verb = Literal["say", "send", "want", "ask", "agree", "refuse"]
#: What a decision says that is tapped instead of typed.
BUTTON = "button"

_VERBS: tuple[Verb, ...] = get_args(Verb)
_NEEDS: dict[Verb, str] = {"say": "{turn}", "send": "{turn}", "want": "{turn}", "ask": "{bill}"}


class StoriesUnusable(Exception):
    """Raised when a file of stories cannot be played. The message names the place and the cure."""


@dataclass(frozen=True, slots=True)
class Step:
    """One act of a person, done `times` times at once; a `late` decision only when the question is no longer open."""

    verb: Verb
    words: str
    times: int = 1
    late: bool = False

    @property
    def decides(self) -> bool:
        """Whether it answers a question."""
        return self.verb in ("agree", "refuse")

    @property
    def tapped(self) -> bool:
        """Whether it is a tap."""
        return self.decides and self.words == BUTTON


@dataclass(frozen=True, slots=True)
class Story:
    """What one person does from beginning to end. `weight` is how often, beside the other stories.

    One without weight is played only where a row of the matrix names it: as often as one of weight 1 for each time.
    """

    name: str
    weight: float
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Repertoire:
    """What a file holds: its stories, and a regular expression for what tools say when they are done."""

    stories: tuple[Story, ...]
    done: str


def load_stories(file: Path, only: tuple[str, ...] = ()) -> Repertoire:
    """The stories of a file, all or only those named. Raises StoriesUnusable."""
    try:
        read = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as exc:
        raise StoriesUnusable(f"{file}: {exc}") from exc
    told = read.get("stories") if isinstance(read, dict) else None
    if not isinstance(told, dict) or not told:
        raise StoriesUnusable(f"{file}: no stories: begin with `stories:` and a name below it")
    unknown = sorted(set(only) - set(told))
    if unknown:
        raise StoriesUnusable(f"{file}: no story {unknown[0]!r}; known: {sorted(told)}")
    stories = [_story(file, name, told[name]) for name in told if not only or name in only]
    played = tuple(
        replace(story, weight=story.weight or only.count(story.name)) for story in stories if story.weight or only
    )
    if not played:
        raise StoriesUnusable(f"{file}: no story has a weight above 0: nobody would do anything")
    return Repertoire(played, _done(file, read.get("done", DONE)))


def _done(file: Path, done: Any) -> str:
    if not isinstance(done, str) or "{bill}" not in done:
        raise StoriesUnusable(f"{file}: done is {done!r}: write what your tools say, with {{bill}} in it")
    try:
        re.compile(done.replace("{bill}", "b1"))
    except re.error as exc:
        raise StoriesUnusable(f"{file}: done is {done!r}, no regular expression: {exc}") from exc
    return done


def _story(file: Path, name: str, told: Any) -> Story:
    place = f"{file}: story {name!r}"
    if not isinstance(told, dict) or not isinstance(told.get("steps"), list) or not told["steps"]:
        raise StoriesUnusable(f"{place}: has no steps: add `steps:` and a list")
    weight = told.get("weight", 1)
    if not isinstance(weight, int | float) or weight < 0:
        raise StoriesUnusable(f"{place}: weight is {weight!r}: write a number, 0 for never by itself")
    steps = tuple(_step(place, step) for step in told["steps"])
    for number, step in enumerate(steps):
        if step.decides and not any(before.verb == "ask" for before in steps[:number]):
            raise StoriesUnusable(f"{place}: {step.verb!r} comes before any `ask`: nothing was asked yet")
    return Story(str(name), weight, steps)


def _step(place: str, told: Any) -> Step:
    verb = next((verb for verb in _VERBS if isinstance(told, dict) and verb in told), None)
    if verb is None:
        raise StoriesUnusable(f"{place}: {told!r} is no step; a step has one of {', '.join(_VERBS)}")
    words, times = told[verb], told.get("times", 1)
    if not isinstance(words, str):
        raise StoriesUnusable(f"{place}: {verb} is {words!r}: put the words in quotes")
    if _NEEDS.get(verb, "") not in words:
        raise StoriesUnusable(f"{place}: {verb} {words!r} must hold {_NEEDS[verb]}, or its answer cannot be told apart")
    if not isinstance(times, int) or not 1 <= times <= 10:
        raise StoriesUnusable(f"{place}: times is {times!r}: write a number from 1 to 10")
    late = told.get("late", False)
    if not isinstance(late, bool) or (late and verb not in ("agree", "refuse")):
        raise StoriesUnusable(f"{place}: late is {late!r}: write true, at a decision")
    return Step(verb, words, times, late)
