"""EntityMemory: the people, organizations and things that a conversation is about.

A model extracts them from messages (`extraction.py`). The model of an agent with an EntityMemory
reads them at the beginning of each run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from sayso.agent.memory.extraction import ExtractingMemory, one_line, section, text_of
from sayso.agent.providers.base import Provider

#: The most characters of a name, of a type and of an attribute's name.
NAME_CHARS = 80
#: The most characters of an attribute's value.
VALUE_CHARS = 200
#: The most attributes of an entity.
MAX_ATTRIBUTES = 10
#: The most characters of the section that the model reads.
MAX_CONTEXT_CHARS = 5000

PROMPT = (
    "You list the entities that a conversation names: people, organizations, projects, places, "
    'products, dates that matter. Each is an object {"name": "...", "type": "person", '
    '"attributes": {"role": "..."}}: the name as it was said, attributes only as they were said, '
    "short."
)


@dataclass(frozen=True, slots=True)
class Entity:
    """Something that was mentioned. All texts are on one line, and cut to their limits."""

    name: str
    #: What it is, such as "person"; "unknown" if the model did not say.
    entity_type: str = "unknown"
    #: What was said about it, such as "role": "manager"; at most MAX_ATTRIBUTES.
    attributes: Mapping[str, str] = field(default_factory=dict)
    #: When it was mentioned first and last, in Unix seconds.
    first_mentioned: float = 0.0
    last_mentioned: float = 0.0
    #: In how many extractions it was mentioned.
    mention_count: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", one_line(self.name, NAME_CHARS))
        object.__setattr__(self, "entity_type", one_line(self.entity_type, NAME_CHARS) or "unknown")

        pairs = []
        for name, given_value in self.attributes.items():
            key = one_line(str(name), NAME_CHARS)
            value = one_line(text_of(given_value), VALUE_CHARS)
            if key and value:
                pairs.append((key, value))
        object.__setattr__(self, "attributes", dict(pairs[:MAX_ATTRIBUTES]))

    @property
    def key(self) -> str:
        """The name without case, which identifies the entity."""
        return self.name.casefold()

    def merged_with(self, newer: Entity) -> Entity:
        """Return this entity updated by a newer mention.

        The newer attributes win, and so does the newer type, unless it is "unknown".
        """
        entity_type = newer.entity_type
        if entity_type == "unknown":
            entity_type = self.entity_type
        older_attributes = {
            key: value for key, value in self.attributes.items() if key not in newer.attributes
        }
        return replace(
            self,
            entity_type=entity_type,
            attributes={**newer.attributes, **older_attributes},
            last_mentioned=max(self.last_mentioned, newer.last_mentioned),
            mention_count=self.mention_count + newer.mention_count,
        )


class EntityMemory(ExtractingMemory[Entity]):
    """The entities of one conversation. Thread-safe.

    * `provider`, `model`: extract them from the latest `relevance_window` messages. None is the
      default model of the provider.
    * `max_entities`: how many are kept; those not mentioned for longest are removed first.
    * `clock`: returns Unix seconds.

    Raises ValueError for a limit below 1.
    """

    kind = "entities"
    prompt = PROMPT

    def __init__(
        self,
        provider: Provider,
        model: str | None = None,
        max_entities: int = 50,
        relevance_window: int = 10,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(provider, model, relevance_window, clock, max_entities=max_entities)
        self.max_entities = max_entities
        #: The entities by their keys, the last mentioned last.
        self._entities: dict[str, Entity] = {}
        self._lock = threading.Lock()

    @property
    def entities(self) -> list[Entity]:
        """All entities, the last mentioned first."""
        with self._lock:
            return list(reversed(self._entities.values()))

    def _item(self, extracted: Mapping[str, Any], turn: int) -> Entity | None:
        name = text_of(extracted.get("name"))
        entity_type = text_of(extracted.get("type") or extracted.get("entity_type"))
        attributes = extracted.get("attributes")
        if not isinstance(attributes, Mapping):
            attributes = {}
        now = self._clock()
        entity = Entity(name, entity_type, attributes, now, now)
        return entity if entity.name else None

    def update(self, entities: Iterable[Entity]) -> None:
        """Add entities. An entity whose name is known is merged with the known one."""
        with self._lock:
            for entity in entities:
                known = self._entities.pop(entity.key, None)
                if known:
                    self._entities[entity.key] = known.merged_with(entity)
                else:
                    self._entities[entity.key] = entity
            while len(self._entities) > self.max_entities:
                del self._entities[next(iter(self._entities))]

    def build_context(self) -> str:
        """Return the section for the model, or "" without entities.

        Entities stand in the order of their first mention, and attributes in that of their names,
        so that nothing moves when one is mentioned again. If not all fit, those that were not
        mentioned for longest are left out.
        """
        lines = []
        for entity in self.entities:
            attributes = "; ".join(
                f"{key}: {value}" for key, value in sorted(entity.attributes.items())
            )
            line = f"- {entity.name} ({entity.entity_type})"
            if attributes:
                line += f": {attributes}"
            lines.append(((entity.first_mentioned, entity.key), line))
        return section("[Known Entities]", lines, MAX_CONTEXT_CHARS)

    def to_dict(self) -> dict[str, Any]:
        """Return the entities as JSON-ready data, the last mentioned last."""
        return {"entities": [asdict(entity) for entity in reversed(self.entities)]}

    def bound_to(self, data: Mapping[str, Any] | None) -> EntityMemory:
        """Return a memory with the same provider and limits, and only the entities in `data`.

        `data` is what `to_dict` returned, None for no entities.
        """
        memory = EntityMemory(
            self.provider, self.model, self.max_entities, self.relevance_window, clock=self._clock
        )
        memory.update(Entity(**each) for each in (data or {}).get("entities", ()))
        return memory
