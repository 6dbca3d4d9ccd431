"""Guardrails: what looks at texts, as a configuration describes it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sayso.agent.guards import (
    Guardrail,
    GuardrailAction,
    GuardrailsPipeline,
    InjectionGuardrail,
    LengthGuardrail,
    PatternGuardrail,
    TopicGuardrail,
)
from sayso.config.agent_schema import GuardrailSettings
from sayso.config.loader import ConfigError
from sayso.config.plugins import made
from sayso.config.schema import Path_, Settings

_PATH: Path_ = ("agent", "guards")


def guardrails_of(settings: Settings) -> GuardrailsPipeline | None:
    """Those of both stages; None where there are none. Raises ConfigError, which says which of them cannot be."""
    guards = settings.agent.guards
    if not guards.input and not guards.output:
        return None
    return GuardrailsPipeline(_stage(settings, "input", guards.input), _stage(settings, "output", guards.output))


def _stage(settings: Settings, stage: str, given: Sequence[GuardrailSettings]) -> list[Guardrail]:
    return [_guardrail(settings, each, (*_PATH, stage, at)) for at, each in enumerate(given)]


def _guardrail(settings: Settings, given: GuardrailSettings, at: Path_) -> Guardrail:
    if given.plugin is not None:
        return made(settings, given.plugin, Guardrail, (*at, "plugin"))
    try:
        return _ready(given, GuardrailAction(given.action or "block"))
    except (ValueError, re.error) as exc:
        raise ConfigError([f"{settings.origin.at(*at)}{'.'.join(map(str, at))}: {exc}"]) from exc


def _ready(given: GuardrailSettings, action: GuardrailAction) -> Guardrail:
    if given.topic is not None:
        return TopicGuardrail(given.topic, action=action)
    if given.pattern is not None:
        return PatternGuardrail(given.pattern, action)
    if given.length is not None:
        return LengthGuardrail(given.length.max, given.length.min, action=action)
    return InjectionGuardrail(action=action)
