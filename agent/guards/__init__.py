"""Guards: what looks at the words and calls of a run, and stops it politely."""

from sayso.agent.guards.coherence import CoherenceResult, check_coherence
from sayso.agent.guards.guarding import GuardrailBlocked, Stage, guarded
from sayso.agent.guards.guardrail import Guardrail, GuardrailAction, GuardrailResult, Trip
from sayso.agent.guards.injection import InjectionGuardrail
from sayso.agent.guards.length import LengthGuardrail
from sayso.agent.guards.pattern import PatternGuardrail
from sayso.agent.guards.pipeline import GuardrailsPipeline
from sayso.agent.guards.topic import TopicGuardrail

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
