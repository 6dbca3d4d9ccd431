"""Memories: what is known beyond the recent transcript, and whose it is."""

from sayso.agent.memories.entity import Entity, EntityMemory
from sayso.agent.memories.graph import KnowledgeGraphMemory
from sayso.agent.memories.knowledge import KnowledgeMemory
from sayso.agent.memories.sqlite_triples import SQLiteTripleStore
from sayso.agent.memories.triples import MemoryTripleStore, Triple, TripleStore, TripleStoreError
from sayso.agent.scope import in_scope, memory_scope

__all__ = [
    "Entity",
    "EntityMemory",
    "KnowledgeGraphMemory",
    "KnowledgeMemory",
    "MemoryTripleStore",
    "SQLiteTripleStore",
    "Triple",
    "TripleStore",
    "TripleStoreError",
    "in_scope",
    "memory_scope",
]
