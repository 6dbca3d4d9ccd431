"""The profile of a simulation (what breaks, how much, for how long), and the stories of its users.

A story is a list of steps, such as "ask to pay a bill" and "agree". A bill is the name of what is
asked for: `{bill}` in a step becomes a new name such as `b5`, and `{turn}` the number of the turn,
such as `t5`. The ready profiles and stories are in profiles.yaml and stories.yaml.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import Field, ValidationError

from sayso.channels.base import Section
from sayso.infra.spelling import did_you_mean
from sayso.testing.simulation.outcomes import DONE

#: What can be killed.
FaultTarget = Literal["worker", "machine", "web", "redis"]
#: What can run full.
StorageKind = Literal["memory", "disk"]
#: The ready profiles and stories.
PROFILES = Path(__file__).parent / "profiles.yaml"
STORIES = Path(__file__).parent / "stories.yaml"
#: The name that stands for all ready profiles: each is a row of one large table.
MATRIX = "matrix"
#: The ready profiles that are not part of it.
NOT_IN_MATRIX = ("quick",)
#: What --full-size changes in every profile. Its own `full_size` comes after this.
FULL_SIZE: Mapping[str, Any] = {"turns": 20_000, "conversations": 500, "workers": 4}
#: The kinds of a step; stories.yaml explains each.
Verb = Literal["say", "send", "want", "ask", "next", "agree", "refuse"]
#: The text of a decision that is tapped instead of typed.
BUTTON = "button"
#: The texts of a `next`: wait for the question about the next step of a request, or for the line
#: that ends the request.
QUESTION = "question"
REST = "rest"
#: The text of a `next` that waits for the outcome of what other people decide.
OTHERS = "others"
#: The placeholders of bills in the text of a request: one for each step.
_BILL_PLACEHOLDER = re.compile(r"\{bill\d?\}")
_VERBS: tuple[Verb, ...] = get_args(Verb)
#: The placeholder that the text of a step must contain, so that its answer can be recognized.
_NEEDED_PLACEHOLDER: dict[Verb, str] = {
    "say": "{turn}",
    "send": "{turn}",
    "want": "{turn}",
    "ask": "{bill}",
}
#: The values of `measures` that mean something only together with the size of the run.
_SIZED_MEASURES = ("speed", "size")

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
#: Seconds between two faults of a kind.
Interval = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]


class InvalidProfile(Exception):
    """Raised when a profile cannot be used. The message names the place and the fix."""


class Profile(Section):
    """One simulation. Times are in seconds, 0 for never; shares are between 0 and 1."""

    #: How many acts all users do together: messages, taps, files.
    turns: int = Field(default=1000, ge=1)
    conversations: int = Field(default=50, ge=1, le=20_000)
    #: Nothing new begins after so long.
    seconds: Seconds = 0.0
    #: The most turns a second of all users. 0: as fast as users are answered.
    turns_per_second: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    #: The number of worker processes.
    workers: int = Field(default=3, ge=1, le=64)
    #: The number of machines that the workers are on. Each has a data folder.
    machines: int = Field(default=1, ge=1, le=8)
    #: The number of web processes.
    webs: int = Field(default=1, ge=1, le=8)
    #: Other members of each group who say yes to each question at once.
    strangers: int = Field(default=0, ge=0, le=50)
    #: How long the language model takes, in milliseconds: the least and the most.
    model_ms: tuple[Annotated[float, Field(ge=0)], Annotated[float, Field(ge=0)]] = (20.0, 200.0)
    #: Repeats the choices of a run, though not its timing. None: a new one.
    seed: int | None = None

    #: Seconds between two kills with SIGKILL, by what is killed.
    kill_every: dict[FaultTarget, Interval] = Field(default_factory=dict)
    #: Seconds between two pauses of a worker, each twice as long as its lease.
    pause_every: Seconds = 0.0
    #: Seconds between two replacements of all workers and webs by SIGTERM.
    restart_every: Seconds = 0.0
    #: Seconds that Redis is away, once.
    outage_seconds: Seconds = 0.0
    #: Whether the webs store messages on their own disk while Redis is away.
    spool: bool = False
    #: By what runs full, memory or disk: seconds from one time of 5 s to the next.
    full_every: dict[StorageKind, Interval] = Field(default_factory=dict)
    #: Seconds by which the clocks of the webs are ahead, or behind if negative. The clocks of half
    #: the workers are ahead by as much, those of the others behind.
    clock_skew: float = Field(default=0.0, allow_inf_nan=False)
    #: Seconds for which questions stay open. 0: as the configuration says.
    question_seconds: Seconds = 0.0
    #: Share of the commands to Redis whose reply and connection are lost.
    lost_replies: Share = 0.0
    #: The most milliseconds by which a reply of Redis is late.
    redis_delay_ms: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    #: Share of the webhooks that are delivered 2 to 5 times.
    repeated_webhooks: Share = 0.0
    #: Share of these repeats that come late; the others come at once.
    late_repeats: Share = 0.0
    #: The most seconds by which a late repeat comes after the first delivery.
    late_seconds: Seconds = 20.0
    #: Whether platforms hang up, or answer 429 or 503, at 45 % of sends.
    failing_platforms: bool = False

    #: The configuration of the bot. None: a shop with the tools of the simulation.
    config: Path | None = None
    #: The file of stories.
    stories: Path = STORIES
    #: The names of the stories that are played. None named: all, by their weight.
    only_stories: tuple[str, ...] = ()
    #: Which measurement must also be within its limit; "" for none.
    measures: Literal["", "speed", "size", "recovery"] = ""
    #: How often something must have happened, by its name in the report, such as `confirmed`. A run
    #: with less is too small to show anything.
    at_least: dict[str, int] = Field(default_factory=dict)
    #: The keys that are different with --full-size.
    full_size: dict[str, Any] = Field(default_factory=dict)

    @property
    def through_proxy(self) -> bool:
        """Whether a proxy stands between the processes and Redis."""
        return self.lost_replies > 0 or self.redis_delay_ms > 0

    @property
    def statuses(self) -> set[int]:
        """The HTTP statuses with which webs may answer webhooks; 0 stands for no answer."""
        allowed = {200}
        redis_may_be_away = "redis" in self.kill_every or self.outage_seconds
        if redis_may_be_away or self.full_every or self.lost_replies:
            allowed.add(503)
        if "web" in self.kill_every or self.restart_every:
            allowed.add(0)
        return allowed

    def description(self) -> str:
        """Return the faults in words; "none" if there are none."""
        faults = [f"kill {part} every {seconds:g} s" for part, seconds in self.kill_every.items()]
        for storage, seconds in self.full_every.items():
            faults.append(f"no {storage} left every {seconds:g} s")
        if self.pause_every:
            faults.append(f"pause a worker every {self.pause_every:g} s")
        if self.restart_every:
            faults.append(f"rolling restart every {self.restart_every:g} s")
        if self.outage_seconds:
            spool = "with a spool" if self.spool else "without a spool"
            faults.append(f"Redis away for {self.outage_seconds:g} s, {spool}")
        if self.clock_skew:
            faults.append(
                f"webs' clocks wrong by {self.clock_skew:+g} s, workers' by that either way"
            )
        if self.question_seconds:
            faults.append(f"questions open for {self.question_seconds:g} s")
        if self.lost_replies:
            faults.append(f"{self.lost_replies:.1%} of Redis's replies lost")
        if self.redis_delay_ms:
            faults.append(f"Redis up to {self.redis_delay_ms:g} ms late")
        if self.repeated_webhooks:
            late = self._describe_late_repeats()
            faults.append(f"{self.repeated_webhooks:.0%} delivered 2-5 times{late}")
        if self.machines > 1:
            faults.append(f"{self.machines} machines of workers")
        if self.webs > 1:
            faults.append(f"{self.webs} webs")
        if self.measures in _SIZED_MEASURES:
            faults.append(
                f"{self.turns_per_second:g} turns a second, {self.conversations:,} conversations"
            )
        if self.strangers:
            faults.append(f"{self.strangers} strangers answer, too")
        if self.failing_platforms:
            faults.append("platforms fail 45 % of sends")
        return "; ".join(faults) or "none"

    def _describe_late_repeats(self) -> str:
        """Return how many repeats come late, as the end of a sentence; "" for none."""
        if not self.late_repeats:
            return ""
        share = ""
        if self.late_repeats < 1:
            share = f"{self.late_repeats:.0%} of it "
        return f", {share}up to {self.late_seconds:g} s late"


def ready_names() -> list[str]:
    """Return the names of all ready profiles."""
    return list(_read_sections(PROFILES))


def load_profiles(name: str, *, full_size: bool = False, **changes: Any) -> list[Profile]:
    """Return the profiles that a name stands for.

    `name` is that of a ready profile, a YAML file with one profile, or "matrix" for all ready
    profiles. With `full_size` each is as large as the documentation promises. `changes` replace
    keys of each. Raises InvalidProfile.
    """
    file = PROFILES
    sections = _read_sections(PROFILES)
    if name == MATRIX:
        names = [each for each in sections if each not in NOT_IN_MATRIX]
    elif name in sections:
        names = [name]
    elif name.endswith((".yaml", ".yml")):
        file = Path(name)
        names = [""]
        sections = {"": _read_sections(file)}
    else:
        known = [*sections, MATRIX]
        hint = did_you_mean(name, known, "{} ")
        raise InvalidProfile(
            f"no profile {name!r}: {hint}name a YAML file, or one of {', '.join(known)}"
        )
    return [_profile(file, each, sections[each], changes, full_size=full_size) for each in names]


def _read(file: Path, error: type[Exception]) -> Any:
    """Return the content of a YAML file. Raises `error` if it cannot be read."""
    try:
        return yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as exc:
        raise error(f"{file}: {exc}") from exc


def _read_sections(file: Path) -> dict[str, Any]:
    """Return the top-level keys of a YAML file. Raises InvalidProfile."""
    content = _read(file, InvalidProfile)
    if not isinstance(content, dict):
        raise InvalidProfile(f"{file}: no profile: write keys such as `turns: 1000`")
    return content


def _profile(
    file: Path,
    name: str,
    section: Mapping[str, Any],
    changes: Mapping[str, Any],
    *,
    full_size: bool,
) -> Profile:
    """Return the profile of one section of a file; `name` is "" if it is the whole file."""
    place = f"{file}: {name}: " if name else f"{file}: "
    try:
        base = Profile.model_validate(section)
        size: Mapping[str, Any] = {}
        if full_size:
            size = {**FULL_SIZE, **base.full_size}
        profile = Profile.model_validate({**section, **size, **changes})
    except ValidationError as exc:
        problems = [f"{place}{_problem(dict(error))}" for error in exc.errors()]
        raise InvalidProfile("\n".join(problems)) from None

    # Paths in a file are relative to its folder, those on the command line are not.
    paths: dict[str, Path] = {}
    for key in ("config", "stories"):
        if section.get(key) and key not in changes:
            paths[key] = file.parent / section[key]
    return profile.model_copy(update=paths)


def _problem(error: Mapping[str, Any]) -> str:
    """Return one error of pydantic in words: the key, the problem, and the fix."""
    key = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        hint = did_you_mean(key, Profile.model_fields, "{} ")
        return f"{key}: unknown key: {hint}known: {', '.join(Profile.model_fields)}"
    problem = str(error["msg"]).replace("Input should", "must")
    return f"{key}: {problem} (it is {error['input']!r})"


class InvalidStories(Exception):
    """Raised when a file of stories cannot be played. The message names the place and the fix."""


@dataclass(frozen=True, slots=True)
class StoryStep:
    """One act of a person, as a story describes it."""

    verb: Verb
    #: What is written, with placeholders; `BUTTON` for a tap, `QUESTION`, `REST` or `OTHERS` for a
    #: `next`.
    text: str
    #: How often it is done at once, from 1 to 10.
    times: int = 1
    #: Whether a decision comes only after the question has closed.
    late: bool = False
    #: How many other people must agree to what an `ask` asks for; 0 if its person decides.
    need: int = 0

    @property
    def decides(self) -> bool:
        """Whether the step answers a question."""
        return self.verb in ("agree", "refuse")

    @property
    def further_bills(self) -> int:
        """The number of bills that a request names after its first one."""
        return max(0, len(_BILL_PLACEHOLDER.findall(self.text)) - 1)

    @property
    def tapped(self) -> bool:
        """Whether the step is a tap."""
        return self.decides and self.text == BUTTON


@dataclass(frozen=True, slots=True)
class Story:
    """What one person does from beginning to end."""

    name: str
    #: How often it is chosen, relative to the other stories. A story of weight 0 is played only if
    #: a profile names it in `only_stories`, where each mention counts as a weight of 1.
    weight: float
    steps: tuple[StoryStep, ...]


@dataclass(frozen=True, slots=True)
class Repertoire:
    """The stories that the users of a simulation play."""

    stories: tuple[Story, ...]
    #: A regular expression for what tools say when they are done, with {bill} for the bill.
    done: str


def load_stories(file: Path, only: tuple[str, ...] = ()) -> Repertoire:
    """Return the stories of a file: those that `only` names, or all. Raises InvalidStories."""
    content = _read(file, InvalidStories)
    definitions = None
    if isinstance(content, dict):
        definitions = content.get("stories")
    if not isinstance(definitions, dict) or not definitions:
        raise InvalidStories(f"{file}: no stories: begin with `stories:` and a name below it")
    unknown = sorted(set(only) - set(definitions))
    if unknown:
        raise InvalidStories(f"{file}: no story {unknown[0]!r}; known: {sorted(definitions)}")

    played = []
    for name, definition in definitions.items():
        if only and name not in only:
            continue
        story = _story(file, name, definition)
        weight = story.weight or only.count(story.name)
        if weight:
            played.append(replace(story, weight=weight))
    if not played:
        raise InvalidStories(f"{file}: no story has a weight above 0: nobody would do anything")
    return Repertoire(tuple(played), _checked_done(file, content.get("done", DONE)))


def _checked_done(file: Path, done: Any) -> str:
    """Return the key `done` of a file. Raises InvalidStories."""
    if not isinstance(done, str) or "{bill}" not in done:
        raise InvalidStories(
            f"{file}: done is {done!r}: write what your tools say, with {{bill}} in it"
        )
    try:
        re.compile(done.replace("{bill}", "b1"))
    except re.error as exc:
        raise InvalidStories(f"{file}: done is {done!r}, not a regular expression: {exc}") from exc
    return done


def _story(file: Path, name: str, definition: Any) -> Story:
    """Return the story of one entry of a file. Raises InvalidStories."""
    place = f"{file}: story {name!r}"
    step_definitions = None
    if isinstance(definition, dict):
        step_definitions = definition.get("steps")
    if not isinstance(step_definitions, list) or not step_definitions:
        raise InvalidStories(f"{place}: has no steps: add `steps:` and a list")
    weight = definition.get("weight", 1)
    if not isinstance(weight, int | float) or weight < 0:
        raise InvalidStories(
            f"{place}: weight is {weight!r}: write a number, 0 for never by itself"
        )

    steps = tuple(_step(place, step) for step in step_definitions)
    was_asked = False
    for step in steps:
        if not was_asked and (step.decides or step.verb == "next"):
            raise InvalidStories(
                f"{place}: {step.verb!r} comes before any `ask`: nothing was asked yet"
            )
        was_asked = was_asked or step.verb == "ask"
    _check_further_steps(place, steps)
    return Story(str(name), weight, steps)


def _check_further_steps(place: str, steps: Sequence[StoryStep]) -> None:
    """Raise InvalidStories if a story waits for more questions than its request has steps."""
    remaining_bills = 0
    for step in steps:
        if step.verb == "ask":
            remaining_bills = step.further_bills
        if step.verb == "next" and step.text == QUESTION:
            remaining_bills -= 1
        if remaining_bills < 0:
            raise InvalidStories(
                f"{place}: the request has no further step: name {{bill2}} in its `ask`"
            )


def _step(place: str, definition: Any) -> StoryStep:
    """Return the step of one entry of a story. Raises InvalidStories."""
    verbs = [verb for verb in _VERBS if isinstance(definition, dict) and verb in definition]
    if not verbs:
        raise InvalidStories(
            f"{place}: {definition!r} is not a step; a step has one of {', '.join(_VERBS)}"
        )
    verb = verbs[0]
    text = definition[verb]
    if not isinstance(text, str):
        raise InvalidStories(f"{place}: {verb} is {text!r}: put the text in quotes")
    needed = _NEEDED_PLACEHOLDER.get(verb, "")
    if needed not in text:
        raise InvalidStories(
            f"{place}: {verb} {text!r} must hold {needed}, or its answer cannot be told apart"
        )
    if verb == "next" and text not in (QUESTION, REST, OTHERS):
        raise InvalidStories(f"{place}: next is {text!r}: write {QUESTION}, {REST} or {OTHERS}")

    times = definition.get("times", 1)
    if not isinstance(times, int) or not 1 <= times <= 10:
        raise InvalidStories(f"{place}: times is {times!r}: write a number from 1 to 10")
    late = definition.get("late", False)
    if not isinstance(late, bool) or (late and verb not in ("agree", "refuse")):
        raise InvalidStories(f"{place}: late is {late!r}: write true, at a decision")
    need = definition.get("need", 0)
    if not isinstance(need, int) or need < 0 or (need and verb != "ask"):
        raise InvalidStories(f"{place}: need is {need!r}: write a number, at an `ask`")
    return StoryStep(verb, text, times, late, need)
