"""Selectors: which of its tools a model is shown before each call."""

from agent.selectors.composition import AllOf, Always, AnyOf, FailOpen
from agent.selectors.discovery import SelectorLoadError, discover_selectors, find_selector
from agent.selectors.embedding import EmbeddingSelector
from agent.selectors.foresight import Foreseen, foresee, roles_in
from agent.selectors.http_embedder import HttpEmbedder
from agent.selectors.keyword import KeywordSelector
from agent.selectors.narrowing import narrow
from agent.selectors.ngrams import NgramEmbedder
from agent.selectors.protocol import Embedder, ToolSelector
from agent.selectors.roles import RoleBasedSelector, UserRoles

__all__ = [
    "AllOf",
    "Always",
    "AnyOf",
    "Embedder",
    "EmbeddingSelector",
    "FailOpen",
    "Foreseen",
    "HttpEmbedder",
    "KeywordSelector",
    "NgramEmbedder",
    "RoleBasedSelector",
    "SelectorLoadError",
    "ToolSelector",
    "UserRoles",
    "discover_selectors",
    "find_selector",
    "foresee",
    "narrow",
    "roles_in",
]
