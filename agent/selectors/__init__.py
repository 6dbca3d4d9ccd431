"""Selectors: which of its tools a model is shown before each call."""

from sayso.agent.selectors.composition import AllOf, Always, AnyOf, FailOpen
from sayso.agent.selectors.discovery import SelectorLoadError, discover_selectors, find_selector
from sayso.agent.selectors.embedding import EmbeddingSelector
from sayso.agent.selectors.foresight import Foreseen, foresee, roles_in
from sayso.agent.selectors.http_embedder import HttpEmbedder
from sayso.agent.selectors.keyword import KeywordSelector
from sayso.agent.selectors.narrowing import narrow
from sayso.agent.selectors.ngrams import NgramEmbedder
from sayso.agent.selectors.protocol import Embedder, ToolSelector
from sayso.agent.selectors.roles import RoleBasedSelector, UserRoles

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
