"""Loader: a YAML file to checked settings, or every problem in it with file, line and cure."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from config.schema import (
    AgentSettings,
    ConsoleSettings,
    PolicySettings,
    Settings,
    SlackSettings,
    TelegramSettings,
    WhatsAppSettings,
    secret_fields,
)

#: ${NAME}, ${NAME:-default} and ${file:/path}.
_REFERENCE = re.compile(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<default>:-[^}]*)?\}|\$\{file:(?P<file>[^}]+)\}")
_KNOWN_KEYS = sorted(
    {
        info.alias or name
        for model in (
            Settings, AgentSettings, PolicySettings, WhatsAppSettings, TelegramSettings, SlackSettings, ConsoleSettings,
        )
        for name, info in model.model_fields.items()
    }
)  # fmt: skip

Path_ = tuple[str | int, ...]


class ConfigError(Exception):
    """Raised when a configuration cannot be used. The message has one line a problem."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def load_settings(file: Path, environ: Mapping[str, str] | None = None) -> Settings:
    """Read, substitute and check a configuration file. Raises ConfigError."""
    try:
        text = file.read_text(encoding="utf-8")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except FileNotFoundError:
        raise ConfigError([f"{file}: no such file: give one with --config, or copy config/demo.yaml"]) from None
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError([f"{file}: cannot be read: {exc}"]) from exc
    except yaml.YAMLError as exc:
        raise ConfigError([_yaml_problem(file, exc)]) from exc
    reader = _Reader(file, os.environ if environ is None else environ)
    data = reader.read(root) if root is not None else {}
    if reader.problems:
        raise ConfigError(reader.problems)
    try:
        return Settings.model_validate(data)
    except ValidationError as exc:
        raise ConfigError([reader.explain(dict(error)) for error in exc.errors()]) from None


@dataclass(slots=True)
class _Reader:
    """Turns YAML nodes into plain data and remembers on which line each value stood."""

    file: Path
    environ: Mapping[str, str]
    problems: list[str] = field(default_factory=list)
    marks: dict[Path_, yaml.Mark] = field(default_factory=dict)
    secrets: set[str] = field(default_factory=secret_fields)

    def read(self, node: yaml.Node, path: Path_ = ()) -> Any:
        """The value of a node; problems are collected, so that all are told at once."""
        self.marks[path] = node.start_mark
        if isinstance(node, yaml.MappingNode):
            return dict(self._pairs(node, path))
        if isinstance(node, yaml.SequenceNode):
            return [self.read(child, (*path, index)) for index, child in enumerate(node.value)]
        return self._scalar(node, path)

    def explain(self, error: dict[str, Any]) -> str:
        """A pydantic error as file:line: key: what is wrong and what to do."""
        path = self._known(error["loc"])
        missing = error["loc"][-1:] if error["type"] == "missing" else ()
        name = ".".join(str(part) for part in (*path, *missing))
        key = str(error["loc"][-1]) if error["loc"] else ""
        message = _message(error, key)
        return self._at(path, f"{name}: {message}" if name else message)

    def _pairs(self, node: yaml.MappingNode, path: Path_) -> Iterator[tuple[str, Any]]:
        seen: set[str] = set()
        for key_node, value_node in node.value:
            key = str(key_node.value)
            if key in seen:
                self.problems.append(self._at_mark(key_node.start_mark, f"{key}: written twice: keep one of them"))
            seen.add(key)
            yield key, self.read(value_node, (*path, key))

    def _scalar(self, node: yaml.Node, path: Path_) -> Any:
        text = str(node.value)
        if path and path[-1] in self.secrets and text and not _REFERENCE.search(text):
            cure = f"a secret in clear: put it in the environment and write ${{{str(path[-1]).upper()}}}"
            self.problems.append(self._at(path, f"{path[-1]}: {cure}"))
            return ""
        if _REFERENCE.search(text):
            return _REFERENCE.sub(lambda match: self._resolve(match, path), text)
        return text if getattr(node, "style", None) else _plain(text)

    def _resolve(self, match: re.Match[str], path: Path_) -> str:
        if match["file"]:
            try:
                return Path(match["file"]).read_text(encoding="utf-8").strip()
            except OSError as exc:
                self.problems.append(self._at(path, f"{path[-1]}: cannot read {match['file']!r}: {exc.strerror}"))
                return ""
        name = match["name"]
        if name in self.environ and (self.environ[name] or match["default"] is None):
            return self.environ[name]
        if match["default"] is not None:
            return match["default"].removeprefix(":-")
        self.problems.append(
            self._at(path, f"{path[-1]}: {name} is not set: export {name}=..., or write ${{{name}:-default}}")
        )
        return ""

    def _known(self, loc: tuple[str | int, ...]) -> Path_:
        """The part of pydantic's path that stands in the file: it also names the union's branch and missing keys."""
        path: Path_ = ()
        for part in loc:
            if (*path, part) in self.marks:
                path = (*path, part)
        return path

    def _at(self, path: Path_, message: str) -> str:
        return self._at_mark(self.marks[path], message) if path in self.marks else f"{self.file}: {message}"

    def _at_mark(self, mark: yaml.Mark, message: str) -> str:
        return f"{self.file}:{mark.line + 1}:{mark.column + 1}: {message}"


def _message(error: dict[str, Any], key: str) -> str:
    match error["type"]:
        case "extra_forbidden":
            close = difflib.get_close_matches(key, _KNOWN_KEYS, 1)
            return f"unknown key{f': did you mean {close[0]!r}?' if close else ': remove it'}"
        case "missing":
            return "missing: add it"
        case "union_tag_not_found":
            return "platform is missing: one of whatsapp, telegram, slack, console"
        case "union_tag_invalid":
            return f"unknown platform {error['ctx']['tag']!r}: one of whatsapp, telegram, slack, console"
    shown = "" if key in secret_fields() else f" (it is {error['input']!r})"
    return f"{str(error['msg']).removeprefix('Value error, ')}{shown}"


def _yaml_problem(file: Path, exc: yaml.YAMLError) -> str:
    mark = getattr(exc, "problem_mark", None)
    where = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else str(file)
    return f"{where}: not YAML: {getattr(exc, 'problem', exc)}"


def _plain(text: str) -> Any:
    """An unquoted scalar by YAML 1.2: `on`, `no` and `+49123` are text."""
    if text in ("", "~", "null"):
        return None
    if text in ("true", "false"):
        return text == "true"
    if re.fullmatch(r"-?(0|[1-9][0-9]*)", text):
        return int(text)
    if re.fullmatch(r"-?[0-9]+\.[0-9]+", text):
        return float(text)
    return text
