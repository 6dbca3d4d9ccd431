"""Memories: what is known beyond the recent transcript, and whose it is."""

from agent.memories.entity import Entity, EntityMemory
from agent.memories.graph import KnowledgeGraphMemory
from agent.memories.knowledge import KnowledgeMemory
from agent.memories.sqlite_triples import SQLiteTripleStore
from agent.memories.triples import MemoryTripleStore, Triple, TripleStore, TripleStoreError
from agent.scope import in_scope, memory_scope

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
