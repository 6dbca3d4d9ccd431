"""Values that are made swiftly are frozen dataclasses like any other."""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import FrozenInstanceError, InitVar, asdict, dataclass, field, fields, replace

import pytest

from sayso.agent.messages import Message, Role, ToolCall, UsageStats
from sayso.agent.swift import swift


@swift
@dataclass(frozen=True, slots=True)
class Place:
    """Somewhere."""

    name: str
    days: int = 3
    tags: list[str] = field(default_factory=list)
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Slow:
    """The same, made as ever."""

    name: str
    days: int = 3
    tags: list[str] = field(default_factory=list)
    note: str | None = None


MADE = [
    ((), {"name": "Oslo"}),
    (("Oslo",), {}),
    (("Oslo", 4, ["a"], "b"), {}),
    (("Oslo",), {"note": "n", "tags": ["x"], "days": 0}),
    (("Oslo", 3, [], None), {}),
]


@pytest.mark.parametrize(("args", "kwargs"), MADE)
def test_it_is_made_as_its_dataclass_says(args, kwargs):
    """By position, by name, with defaults, and with those that are made anew."""
    assert asdict(Place(*args, **kwargs)) == asdict(Slow(*args, **kwargs))


@pytest.mark.parametrize("made", [Place("Oslo"), Message(Role.USER, "hi"), UsageStats(1), ToolCall("f")])
def test_nobody_changes_it(made):
    """Neither a field of its own nor another, nor the class it is of."""
    name = fields(made)[0].name
    with pytest.raises(FrozenInstanceError):
        setattr(made, name, "other")
    with pytest.raises(FrozenInstanceError):
        delattr(made, name)
    for strange in ("unknown", "__class__"):
        with pytest.raises((FrozenInstanceError, TypeError)):  # Python 3.11 stumbles over its own words there
            setattr(made, strange, object)


def test_it_is_equal_hashed_shown_copied_and_pickled_like_any_other():
    """What dataclasses promise besides holds too."""
    usage = UsageStats(1, 2, 3, model="m")
    assert usage == UsageStats(1, 2, 3, model="m") != UsageStats(1, 2, 4, model="m")
    assert hash(usage) == hash(UsageStats(1, 2, 3, model="m"))
    assert repr(Place("Oslo")) == "Place(name='Oslo', days=3, tags=[], note=None)"
    assert type(usage) is UsageStats
    assert copy.copy(usage) == copy.deepcopy(usage) == pickle.loads(pickle.dumps(usage)) == usage
    assert replace(Place("Oslo"), days=5) == Place("Oslo", 5)


def test_each_has_a_default_of_its_own():
    """A list that one holds is no other's."""
    Place("Oslo").tags.append("cold")
    assert Place("Oslo").tags == []


def test_its_signature_is_the_dataclass_s():
    """For whoever reads it, and for tools that do."""
    assert list(inspect.signature(Place).parameters) == ["name", "days", "tags", "note"]
    with pytest.raises(TypeError, match="name"):
        Place()
    with pytest.raises(TypeError, match="nonsense"):
        Place("Oslo", nonsense=1)


def test_a_subclass_is_made_as_slowly_as_ever():
    """Of another layout, with fields of its own or without: it is frozen, and what its class is called."""

    class Town(Place):
        """Without slots."""

    @dataclass(frozen=True)
    class City(Place):
        """With a field more."""

        people: int = 0

    town, city = Town("Oslo", tags=["a"]), City("Oslo", people=2)
    assert (type(town), town.tags, Town("x").tags, type(city), city.people, city.days) == (Town, ["a"], [], City, 2, 3)
    with pytest.raises(FrozenInstanceError):
        city.name = "other"


def test_fields_may_have_any_name():
    """Also those of what makes them."""

    @swift
    @dataclass(frozen=True, slots=True)
    class Door:
        open: bool
        unset: int = 0
        tags: list[str] = field(default_factory=list)

    assert asdict(Door(True, 1)) == {"open": True, "unset": 1, "tags": []}


def test_what_it_does_not_know_is_refused():
    """Rather than made wrongly."""

    @dataclass(frozen=True, slots=True)
    class Checked:
        name: str

        def __post_init__(self):
            raise ValueError("never")

    @dataclass(frozen=True, slots=True)
    class Derived:
        name: str
        key: str = field(init=False, default="")

    @dataclass(frozen=True, slots=True)
    class Named:
        name: str = field(kw_only=True)

    @dataclass(frozen=True, slots=True)
    class Further(Slow):
        people: int = 0

    @dataclass(frozen=True, slots=True, weakref_slot=True)
    class Watched:
        name: str

    @dataclass(frozen=True)
    class Wide:
        name: str

    @dataclass(frozen=True, slots=True)
    class Told:
        name: str
        aside: InitVar[int] = 0

    @dataclass(frozen=True, slots=True)
    class Hidden:
        tags: list[str] = field(default_factory=list)
        _tags: int = 0

    for kind in (Checked, Derived, Named, Further, Watched, Wide, Told, Hidden):
        with pytest.raises(TypeError, match="cannot be swift"):
            swift(kind)
    with pytest.raises(TypeError):
        swift(int)
