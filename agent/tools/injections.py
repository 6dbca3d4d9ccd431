"""Injections: what text looks like that tries to instruct a model, by kind.

`hiding` is looked for in the text as it is, `shapes` in its `reading.plain`, `phrases` in its words.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from sayso.agent.tools.combinations import combinations


@dataclass(frozen=True, slots=True)
class Shape:
    """A pattern, and a string without which it cannot match: looking for that is much faster."""

    needs: str
    pattern: re.Pattern[str]

    def is_in(self, text: str) -> bool:
        """Whether the text has this shape somewhere."""
        return self.needs in text and self.pattern.search(text) is not None


#: Text that a person does not see. Flags of regions are the one thing that tag characters are for: six at most.
_HIDING: Mapping[str, str] = {
    "hidden text": (
        "(?<![\U0001f3f4\U000e0020-\U000e007e])[\U000e0020-\U000e007e]{2}|\U0001f3f4[\U000e0020-\U000e007e]{7}"
        "|[\U000e0100-\U000e01ef]{2}|[\ufe00-\ufe0f\U000e0100-\U000e01ef]{3}"
        "|[\u200b-\u200d\u2060-\u2064\ufeff\u180e]{6}|[\u202d\u202e]"
    ),
}

_TO_A_MODEL = r"(?:you|your|ignore|assistant|must|obey|never|always|reveal|forget|disregard|policy|tools?)\b"

#: The name of a function, and being told to call one: in English, and in a language whose manuals seldom say it.
_NAME = r"[a-z]{2,20}(?:_[a-z]{2,20}){1,4}"
_CALL = "call|invoke|execute|run|with"
_CALL_ABROAD = (
    r"rufe?|ejecut[ae]|llam[ae]|invo(?:ca|que)|appellez?|execut[ae]|execute[zm]|lancez?|cham[ae]|acione|esegui|chiama|panggil"
    r"|jalankan"
)

#: Text in the shape of somebody else's words: what it needs, and how it goes.
_SHAPES: Mapping[str, Sequence[tuple[str, str]]] = {
    "role": (
        (
            ":",
            r"^[^\w\n]{0,20}(?:system|developer|admin(?:istrator)?)[ _]"
            r"(?:prompt|message|override|instructions?|policy)\b[^\w\n]{0,8}:",
        ),
        ("system", r"^[^\w\n]{0,20}system\b[^\w\n]{0,4}[:\]][^\n]{0,200}\b" + _TO_A_MODEL),
        ("developer", r"^[^\w\n]{0,20}developer\b[^\w\n]{0,4}[:\]][^\n]{0,200}\b" + _TO_A_MODEL),
        ("#", r"^#{1,6} {0,3}(?:system|hidden) (?:instructions?|prompt|message)\b"),
        ("system override", r"system override\b"),
        (
            "<",
            r"</?(?:system|assistant|developer|system_prompt|[a-z]{1,20}_instructions?|(?:tool|function)_results?)"
            r"(?:\s[^>\n]{0,60})?>",
        ),
        (":", r"^[ \t]{0,3}(?:user|human) ?:[^\n]{0,300}\n\s{0,5}(?:assistant|ai) ?:"),
        (":", r"^[ \t]{0,3}(?:assistant|ai) ?:[^\n]{0,300}\n\s{0,5}(?:user|human) ?:"),
        ("]", r"\[(?:human|user|assistant|ai)\] ?:"),
        ("end of ", r"end of (?:the )?(?:tool|function|untrusted|external) (?:output|results?|data|content)\b"),
    ),
    "chat template": (
        ("<|", r"<\|[a-z_]{2,30}\|>"),
        ("inst]", r"\[/?inst\]"),
        ("sys>>", r"<</?sys>>"),
        ("_of_turn>", r"</?(?:start|end)_of_turn>"),
    ),
    "tool call": (
        ("<", r"</?(?:tool_calls?|function_calls?|invoke|tool_use|tool_code)(?:\s[^>\n]{0,80})?>"),
        ('"', r'"(?:tool_calls|function_call|tool_use)"\s{0,3}:'),
        ('"arguments"', r'\{\s{0,9}"name"\s{0,3}:\s{0,3}"[^"\n]{1,64}"\s{0,3},\s{0,9}"arguments"\s{0,3}:\s{0,3}[{"]'),
        ("action input", r"action ?:[^\n]{1,80}\n\s{0,5}action input ?:"),
        (
            "_",
            rf"\b(?:{_CALL}) (?:[a-z]{{1,12}} ){{0,2}}{_NAME} "
            r"(?:now|immediately|right away|at once|for (?:each|all|every))\b",
        ),
        ("_", rf"\b(?:{_CALL_ABROAD}) (?:[a-z]{{1,12}} ){{0,2}}{_NAME}\b"),
        (" tool ", r"\b(?:call|use|invoke|run|execute) (?:the )?tool [`'\"]?[a-z0-9]{1,30}[`'\"_]"),
    ),
    "override": (
        ("instructions", r"(?:new|updated|revised|nouvelles) (?:system )?instructions[ *_]{0,3}:"),
        ("task", r"new task[ *_]{0,3}:"),
        ("orders", r"(?:new|updated) orders[ *_]{0,3}:"),
        ("novas instrucoes", r"novas instrucoes ?:"),
        ("nuevas instrucciones", r"nuevas instrucciones ?:"),
        ("neue anweisungen", r"neue anweisungen ?:"),
        ("nuove istruzioni", r"nuove istruzioni ?:"),
    ),
    "exfiltration": (
        (
            "![",
            r"!\[[^\]\n]{0,100}\]\(\s{0,3}https?://[^)\s]{1,300}[?&][a-z_]{1,20}=(?:e?mail|name|user|data|chat|history|query|"
            r"secret|token|password)?\)",
        ),
        ("![", r"!\[[^\]\n]{0,100}\]\(\s{0,3}https?://[^)\s]{1,300}[?&=][^)\n\s]{0,60}[{\[<]"),
    ),
}


@cache
def hiding() -> Mapping[str, re.Pattern[str]]:
    """What hides, by kind; compiled when it is first looked for."""
    return {kind: re.compile(pattern) for kind, pattern in _HIDING.items()}


@cache
def shapes() -> Mapping[str, Sequence[Shape]]:
    """Whose words text pretends to be, by kind; compiled when they are first looked for."""
    return {
        kind: [Shape(needs, re.compile(pattern, re.MULTILINE)) for needs, pattern in several]
        for kind, several in _SHAPES.items()
    }


@cache
def phrases() -> Mapping[str, Sequence[str]]:
    """What is said to a model, by kind: of `injections.toml`, and what `combinations` make of building blocks."""
    found: dict[str, list[str]] = {}
    for kind, languages in _read("injections.toml").items():
        found.setdefault(kind, []).extend(phrase for several in languages.values() for phrase in several)
    for kind, phrase in combinations():
        found.setdefault(kind, []).append(phrase)
    return found


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads(files("sayso.agent.tools").joinpath(name).read_text(encoding="utf-8"))
