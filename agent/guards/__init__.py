"""Guards: what looks at the words and calls of a run, and stops it politely."""

from agent.guards.coherence import CoherenceResult, check_coherence
from agent.guards.guarding import GuardrailBlocked, Stage, guarded
from agent.guards.guardrail import Guardrail, GuardrailAction, GuardrailResult, Trip
from agent.guards.injection import InjectionGuardrail
from agent.guards.length import LengthGuardrail
from agent.guards.pattern import PatternGuardrail
from agent.guards.pipeline import GuardrailsPipeline
from agent.guards.topic import TopicGuardrail

__all__ = [
    "CoherenceResult",
    "Guardrail",
    "GuardrailAction",
    "GuardrailBlocked",
    "GuardrailResult",
    "GuardrailsPipeline",
    "InjectionGuardrail",
    "LengthGuardrail",
    "PatternGuardrail",
    "Stage",
    "TopicGuardrail",
    "Trip",
    "check_coherence",
    "guarded",
]
