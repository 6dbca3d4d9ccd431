"""The profile of a simulation: its size, its faults, what is measured,
and the stories that its users play.

profiles.yaml and stories.yaml have the ready ones.
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
#: The profiles and stories that ship.
PROFILES = Path(__file__).parent / "profiles.yaml"
STORIES = Path(__file__).parent / "stories.yaml"
#: Ready profiles that are no rows of the matrix, and the name that stands for all rows.
NOT_IN_MATRIX = ("quick",)
MATRIX = "matrix"
#: The full size of every profile that does not say otherwise.
FULL_SIZE: Mapping[str, Any] = {"turns": 20_000, "conversations": 500, "workers": 4}
#: The kinds of a step; stories.yaml explains each.
Verb = Literal["say", "send", "want", "ask", "next", "agree", "refuse"]
#: The text of a decision that is tapped instead of typed.
BUTTON = "button"
#: What a story may wait for after a step of a request: the question about the next one,
#: or the line that ends it.
QUESTION = "question"
REST = "rest"
#: The places of bills in the text of a request: one for each step.
_BILL_PLACE = re.compile(r"\{bill\d?\}")
_VERBS: tuple[Verb, ...] = get_args(Verb)
_NEEDS: dict[Verb, str] = {"say": "{turn}", "send": "{turn}", "want": "{turn}", "ask": "{bill}"}
#: Measurements that are only meaningful with the size of the run.
_SIZED = ("speed", "size")

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
#: Seconds between two faults of a kind.
Interval = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]


class InvalidProfile(Exception):
    """Raised when a profile cannot be used. The message names the place and the fix."""


class Profile(Section):
    """One simulation. Times are in seconds, 0 for never; shares are between 0 and 1."""

    #: Things that users do, in all.
    turns: int = Field(default=1000, ge=1)
    conversations: int = Field(default=50, ge=1, le=20_000)
    #: Nothing new begins after so long.
    seconds: Seconds = 0.0
    #: Turns a second at most. 0: as fast as users are answered.
    turns_per_second: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    #: Number of worker processes, of machines that they are on (each has a data folder),
    #: and of web processes.
    workers: int = Field(default=3, ge=1, le=64)
    machines: int = Field(default=1, ge=1, le=8)
    webs: int = Field(default=1, ge=1, le=8)
    #: Other members of each group who say yes to each question at once.
    strangers: int = Field(default=0, ge=0, le=50)
    #: How long the language model takes, in milliseconds: from and to.
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
    #: Whether the webs keep on their own disk what Redis cannot take.
    spool: bool = False
    #: Seconds between two times of 5 s in which Redis has no memory or disk left,
    #: by what runs full.
    full_every: dict[StorageKind, Interval] = Field(default_factory=dict)
    #: Seconds by which the clocks of the webs are ahead;
    #: those of workers are wrong by as much either way.
    clock_skew: float = Field(default=0.0, allow_inf_nan=False)
    #: Seconds for which questions stay open. 0: as the configuration says.
    question_seconds: Seconds = 0.0
    #: Share of the commands to Redis whose reply and connection are lost.
    lost_replies: Share = 0.0
    #: Replies of Redis are up to this many milliseconds late.
    redis_delay_ms: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    #: Share of the webhooks that are delivered 2 to 5 times;
    #: the share of these repeats that are late, and how late.
    repeated_webhooks: Share = 0.0
    late_repeats: Share = 0.0
    late_seconds: Seconds = 20.0
    #: Whether platforms hang up, or answer 429 or 503, at 45 % of sends.
    failing_platforms: bool = False

    #: The configuration of the bot. None: a shop with the tools of the simulation.
    config: Path | None = None
    #: The file of stories, and the names of those that are played. No names: all, by their weight.
    stories: Path = STORIES
    only_stories: tuple[str, ...] = ()
    #: What else is held against a promise.
    measures: Literal["", "speed", "size", "recovery"] = ""
    #: The smallest counts of the report with which the run is large enough.
    at_least: dict[str, int] = Field(default_factory=dict)
    #: The keys that are different with --full-size.
    full_size: dict[str, Any] = Field(default_factory=dict)

    @property
    def through_proxy(self) -> bool:
        """Whether a proxy stands between the processes and Redis."""
        return self.lost_replies > 0 or self.redis_delay_ms > 0

    @property
    def statuses(self) -> set[int]:
        """The allowed responses to webhooks: 200; 503 if Redis may be away;
        0 (none) if webs are killed.
        """
        without_redis = (
            "redis" in self.kill_every
            or self.outage_seconds
            or self.full_every
            or self.lost_replies
        )
        without_web = "web" in self.kill_every or self.restart_every
        return {200, *([503] if without_redis else []), *([0] if without_web else [])}

    def description(self) -> str:
        """Return the faults in words; "none" if there are none."""
        faults = [f"kill {part} every {seconds:g} s" for part, seconds in self.kill_every.items()]
        faults += [
            f"no {storage} left every {seconds:g} s" for storage, seconds in self.full_every.items()
        ]
        spool = "with a spool" if self.spool else "without a spool"
        if self.late_repeats == 1:
            share_late = ""
        else:
            share_late = f"{self.late_repeats:.0%} of it "
        if self.late_repeats:
            late = f", {share_late}up to {self.late_seconds:g} s late"
        else:
            late = ""
        is_sized = self.measures in _SIZED
        for is_planned, text in (
            (self.pause_every, f"pause a worker every {self.pause_every:g} s"),
            (self.restart_every, f"rolling restart every {self.restart_every:g} s"),
            (self.outage_seconds, f"Redis away for {self.outage_seconds:g} s, {spool}"),
            (
                self.clock_skew,
                f"webs' clocks wrong by {self.clock_skew:+g} s, workers' by that either way",
            ),
            (self.question_seconds, f"questions open for {self.question_seconds:g} s"),
            (self.lost_replies, f"{self.lost_replies:.1%} of Redis's replies lost"),
            (self.redis_delay_ms, f"Redis up to {self.redis_delay_ms:g} ms late"),
            (self.repeated_webhooks, f"{self.repeated_webhooks:.0%} delivered 2-5 times{late}"),
            (self.machines > 1, f"{self.machines} machines of workers"),
            (self.webs > 1, f"{self.webs} webs"),
            (
                is_sized,
                f"{self.turns_per_second:g} turns a second, {self.conversations:,} conversations",
            ),
            (self.strangers, f"{self.strangers} strangers answer, too"),
            (self.failing_platforms, "platforms fail 45 % of sends"),
        ):
            faults += [text] if is_planned else []
        return "; ".join(faults) or "none"


def ready_names() -> list[str]:
    """Return the names of all profiles that ship."""
    return list(_read_sections(PROFILES))


def load_profiles(name: str, *, full_size: bool = False, **changes: Any) -> list[Profile]:
    """Return the profile of a name or of a YAML file; all rows of the matrix for "matrix".

    With `full_size` each is as large as is promised. `changes` replace keys of all.
    Raises InvalidProfile.
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
        hint = did_you_mean(name, [*sections, MATRIX], "{} ")
        raise InvalidProfile(
            f"no profile {name!r}: {hint}name a YAML file, or one of {', '.join([*sections, MATRIX])}"
        )
    return [_profile(file, each, sections[each], changes, full_size=full_size) for each in names]


def _read(file: Path, error: type[Exception]) -> Any:
    try:
        return yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as exc:
        raise error(f"{file}: {exc}") from exc


def _read_sections(file: Path) -> dict[str, Any]:
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
    place = f"{file}: {name}: " if name else f"{file}: "
    try:
        base = Profile.model_validate(section)
        if full_size:
            size = {**FULL_SIZE, **base.full_size}
        else:
            size = {}
        profile = Profile.model_validate({**section, **size, **changes})
    except ValidationError as exc:
        raise InvalidProfile(
            "\n".join(f"{place}{_problem(dict(error))}" for error in exc.errors())
        ) from None
    paths = {
        key: file.parent / path
        for key in ("config", "stories")
        if key in section and (path := section[key])
    }
    return profile.model_copy(
        update={key: path for key, path in paths.items() if key not in changes}
    )


def _problem(error: Mapping[str, Any]) -> str:
    key = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        hint = did_you_mean(key, Profile.model_fields, "{} ")
        return f"{key}: unknown key: {hint}known: {', '.join(Profile.model_fields)}"
    return f"{key}: {str(error['msg']).replace('Input should', 'must')} (it is {error['input']!r})"


class InvalidStories(Exception):
    """Raised when a file of stories cannot be played. The message names the place and the fix."""


@dataclass(frozen=True, slots=True)
class StoryStep:
    """One act of a person, done `times` times at once.

    A `late` decision comes after the question has closed.
    """

    verb: Verb
    text: str
    times: int = 1
    late: bool = False

    @property
    def decides(self) -> bool:
        """Whether the step answers a question."""
        return self.verb in ("agree", "refuse")

    @property
    def further_bills(self) -> int:
        """The number of steps of a request behind its first one."""
        return max(0, len(_BILL_PLACE.findall(self.text)) - 1)

    @property
    def tapped(self) -> bool:
        """Whether the step is a tap."""
        return self.decides and self.text == BUTTON


@dataclass(frozen=True, slots=True)
class Story:
    """What one person does from beginning to end.

    `weight` is how often it is chosen, relative to the others.

    A story of weight 0 is played only where a profile names it in `only_stories`;
    each mention counts as a weight of 1.
    """

    name: str
    weight: float
    steps: tuple[StoryStep, ...]


@dataclass(frozen=True, slots=True)
class Repertoire:
    """The stories of a file, and a regular expression for what tools say when they are done."""

    stories: tuple[Story, ...]
    done: str


def load_stories(file: Path, only: tuple[str, ...] = ()) -> Repertoire:
    """Return the stories of a file, all or only those named. Raises InvalidStories."""
    content = _read(file, InvalidStories)
    if isinstance(content, dict):
        definitions = content.get("stories")
    else:
        definitions = None
    if not isinstance(definitions, dict) or not definitions:
        raise InvalidStories(f"{file}: no stories: begin with `stories:` and a name below it")
    unknown = sorted(set(only) - set(definitions))
    if unknown:
        raise InvalidStories(f"{file}: no story {unknown[0]!r}; known: {sorted(definitions)}")
    stories = [
        _story(file, name, definitions[name]) for name in definitions if not only or name in only
    ]
    played = tuple(
        replace(story, weight=story.weight or only.count(story.name))
        for story in stories
        if story.weight or only
    )
    if not played:
        raise InvalidStories(f"{file}: no story has a weight above 0: nobody would do anything")
    return Repertoire(played, _done(file, content.get("done", DONE)))


def _done(file: Path, done: Any) -> str:
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
    place = f"{file}: story {name!r}"
    if (
        not isinstance(definition, dict)
        or not isinstance(definition.get("steps"), list)
        or not definition["steps"]
    ):
        raise InvalidStories(f"{place}: has no steps: add `steps:` and a list")
    weight = definition.get("weight", 1)
    if not isinstance(weight, int | float) or weight < 0:
        raise InvalidStories(
            f"{place}: weight is {weight!r}: write a number, 0 for never by itself"
        )
    steps = tuple(_step(place, step) for step in definition["steps"])
    for number, step in enumerate(steps):
        if (step.decides or step.verb == "next") and not any(
            before.verb == "ask" for before in steps[:number]
        ):
            raise InvalidStories(
                f"{place}: {step.verb!r} comes before any `ask`: nothing was asked yet"
            )
    _check_further_steps(place, steps)
    return Story(str(name), weight, steps)


def _check_further_steps(place: str, steps: Sequence[StoryStep]) -> None:
    """Raise InvalidStories if a story waits for more questions than its request has further bills."""
    left = 0
    for step in steps:
        if step.verb == "ask":
            left = step.further_bills
        if step.verb == "next" and step.text == QUESTION:
            left -= 1
        if left < 0:
            raise InvalidStories(
                f"{place}: the request has no further step: name {{bill2}} in its `ask`"
            )


def _step(place: str, definition: Any) -> StoryStep:
    verb = next(
        (verb for verb in _VERBS if isinstance(definition, dict) and verb in definition), None
    )
    if verb is None:
        raise InvalidStories(
            f"{place}: {definition!r} is not a step; a step has one of {', '.join(_VERBS)}"
        )
    text = definition[verb]
    times = definition.get("times", 1)
    if not isinstance(text, str):
        raise InvalidStories(f"{place}: {verb} is {text!r}: put the text in quotes")
    if _NEEDS.get(verb, "") not in text:
        raise InvalidStories(
            f"{place}: {verb} {text!r} must hold {_NEEDS[verb]}, or its answer cannot be told apart"
        )
    if verb == "next" and text not in (QUESTION, REST):
        raise InvalidStories(f"{place}: next is {text!r}: write {QUESTION} or {REST}")
    if not isinstance(times, int) or not 1 <= times <= 10:
        raise InvalidStories(f"{place}: times is {times!r}: write a number from 1 to 10")
    late = definition.get("late", False)
    if not isinstance(late, bool) or (late and verb not in ("agree", "refuse")):
        raise InvalidStories(f"{place}: late is {late!r}: write true, at a decision")
    return StoryStep(verb, text, times, late)
