"""EntityMemory: the people, organizations and things that a conversation named, and what was said of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import Any

from sayso.agent.memory.extraction import TIMEOUT_SECONDS, extracted, heard, model_for, one_line, section, text_of
from sayso.agent.messages import Message, UsageStats
from sayso.agent.providers.base import Provider
from sayso.pending.concurrency import run_sync

#: Characters of a name or a kind, of an attribute's value, and attributes of one entity.
NAME_CHARS, VALUE_CHARS, MAX_ATTRIBUTES = 80, 200, 10
#: Characters of the section that the model reads.
MAX_CONTEXT_CHARS = 5000

PROMPT = (
    "You list the entities that a conversation names: people, organizations, projects, places, products, dates that "
    'matter. Each is an object {"name": "...", "type": "person", "attributes": {"role": "..."}}: the name as it was '
    "said, attributes only as they were said, short."
)


@dataclass(frozen=True, slots=True)
class Entity:
    """Somebody or something that was named. All its words are short and of one line; times are Unix seconds."""

    name: str
    entity_type: str = "unknown"
    attributes: Mapping[str, str] = field(default_factory=dict)
    first_mentioned: float = 0.0
    last_mentioned: float = 0.0
    mention_count: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", one_line(self.name, NAME_CHARS))
        object.__setattr__(self, "entity_type", one_line(self.entity_type, NAME_CHARS) or "unknown")
        object.__setattr__(self, "attributes", _short(self.attributes))

    @property
    def key(self) -> str:
        """What two spellings of one name share."""
        return self.name.casefold()

    def met_again(self, other: Entity) -> Entity:
        """This one with what is known of it since: later words win, "unknown" says nothing."""
        kind = self.entity_type if other.entity_type == "unknown" else other.entity_type
        return replace(
            self,
            entity_type=kind,
            attributes={**other.attributes, **_without(self.attributes, other.attributes)},
            last_mentioned=max(self.last_mentioned, other.last_mentioned),
            mention_count=self.mention_count + other.mention_count,
        )


class EntityMemory:
    """Lives as long as its conversation, or as long as who made it wants. Any thread may use it.

    It asks `model` of `provider` what the latest `relevance_window` messages name, and keeps `max_entities`; those not
    mentioned for longest go first. `clock` tells Unix seconds.
    """

    def __init__(
        self,
        provider: Provider,
        model: str | None = None,
        max_entities: int = 50,
        relevance_window: int = 10,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if min(max_entities, relevance_window) < 1:
            raise ValueError(
                f"max_entities={max_entities!r} and relevance_window={relevance_window!r} must be 1 or more"
            )
        self.provider, self.model = provider, model
        self.max_entities, self.relevance_window = max_entities, relevance_window
        self._clock = clock
        self._entities: dict[str, Entity] = {}  # whoever was mentioned last comes last
        self._lock = threading.Lock()

    @property
    def entities(self) -> list[Entity]:
        """What is known, whoever was mentioned last first."""
        with self._lock:
            return list(reversed(self._entities.values()))

    async def aextract_entities(
        self,
        messages: Sequence[Message],
        model: str | None = None,
        *,
        timeout: float | None = TIMEOUT_SECONDS,  # noqa: ASYNC109  # acall enforces it
    ) -> tuple[list[Entity], UsageStats]:
        """What the messages name, without keeping it, and what that cost. Nothing where the model fails."""
        found, usage = await extracted(
            self.provider,
            PROMPT,
            heard(messages)[-self.relevance_window :],
            model=model_for(self.provider, model, self.model),
            timeout=timeout,
            kind="entities",
        )
        now = self._clock()
        return [entity for each in found if (entity := _entity(each, now)).name], usage

    def extract_entities(self, messages: Sequence[Message], model: str | None = None) -> list[Entity]:
        """`aextract_entities` for sync code, without the cost."""
        return run_sync(self.aextract_entities(messages, model))[0]

    def update(self, entities: Iterable[Entity]) -> None:
        """Keep what was found. One name is one entity, in whatever case it is written."""
        with self._lock:
            for entity in entities:
                known = self._entities.pop(entity.key, None)
                self._entities[entity.key] = known.met_again(entity) if known else entity
            while len(self._entities) > self.max_entities:
                del self._entities[next(iter(self._entities))]

    def build_context(self) -> str:
        """The section for the model, who was mentioned last first; "" where nobody is known."""
        return section("[Known Entities]", [_line(entity) for entity in self.entities], MAX_CONTEXT_CHARS)

    def to_dict(self) -> dict[str, Any]:
        """Limits and entities as JSON-ready data."""
        return {
            "max_entities": self.max_entities,
            "relevance_window": self.relevance_window,
            "entities": [asdict(entity) for entity in reversed(self.entities)],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], provider: Provider) -> EntityMemory:
        """The memory that `to_dict` wrote. Raises KeyError, TypeError or ValueError on anything else."""
        memory = cls(provider, None, data["max_entities"], data["relevance_window"])
        memory.update(Entity(**each) for each in data["entities"])
        return memory

    def bound_to(self, data: Mapping[str, Any] | None) -> EntityMemory:
        """One of the same provider and limits that knows only what `data` (of `to_dict`) says."""
        memory = EntityMemory(self.provider, self.model, self.max_entities, self.relevance_window, clock=self._clock)
        memory.update(Entity(**each) for each in (data or {}).get("entities", ()))
        return memory


def _entity(found: Mapping[str, Any], now: float) -> Entity:
    kind = text_of(found.get("type") or found.get("entity_type"))
    attributes = found.get("attributes")
    return Entity(text_of(found.get("name")), kind, attributes if isinstance(attributes, Mapping) else {}, now, now)


def _short(attributes: Mapping[str, Any]) -> dict[str, str]:
    pairs = (
        (one_line(str(key), NAME_CHARS), one_line(text_of(value), VALUE_CHARS)) for key, value in attributes.items()
    )
    return dict(islice(((key, value) for key, value in pairs if key and value), MAX_ATTRIBUTES))


def _without(attributes: Mapping[str, str], others: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in attributes.items() if key not in others}


def _line(entity: Entity) -> str:
    known = "; ".join(f"{key}: {value}" for key, value in entity.attributes.items())
    return f"- {entity.name} ({entity.entity_type})" + (f": {known}" if known else "")
