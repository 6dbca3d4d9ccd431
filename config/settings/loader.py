"""Read a YAML file into checked settings, or report every problem in it with file, line and cure."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml
from pydantic import ValidationError

from sayso.channels.base import web_address, without_secrets
from sayso.channels.registry import platform_names
from sayso.channels.setup import is_loopback
from sayso.config.settings.schema import (
    Origin,
    Settings,
    is_secret_place,
    keys_beside,
    secret_fields,
)
from sayso.config.settings.tools import Path_
from sayso.infra.redaction import remember, secrets_of
from sayso.infra.spelling import did_you_mean, nearest

#: ${NAME}, ${NAME:-default} and ${file:path}; relative paths start beside the YAML file.
_REFERENCE = re.compile(
    r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<default>:-[^}]*)?\}|\$\{file:(?P<file>[^}]+)\}"
)
#: What pydantic's kinds of error mean to a person who writes YAML.
_MESSAGES = {
    "dict_type": "must be a section: indented `key: value` lines",
    "model_type": "must be a section: indented `key: value` lines",
    "model_attributes_type": "must be a section: indented `key: value` lines",
    "list_type": "must be a list, such as [a, b]",
    "tuple_type": "must be a list, such as [a, b]",
    "string_type": "must be text: put it in quotes",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "too_short": "is empty: add one",
    "string_too_short": "is empty: give it a value",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "string_pattern_mismatch": "a name has 1 to 64 letters, digits and . _ -",
    "missing": "missing: add it",
}
#: The value of a secret that was not looked up.
UNREAD = "unread"
_GIVE_ONE = "give a YAML file with --config or SAYSO_CONFIG"
#: The configuration in the current folder that is used when none is given.
DEFAULT = Path("sayso.yaml")
#: The address of the bot where none is configured.
DEFAULT_URL = "http://127.0.0.1:8000"
#: What `sayso demo` runs: it needs no account.
DEMO = Path(__file__).parents[1] / "demo.yaml"
#: A reference needs no quotes between { } or [ ] either: `{platform: telegram, token: ${TOKEN}}` is
#: what people write, and YAML alone would read `{TOKEN}` as a map and report a fault elsewhere. So
#: while the parser reads, each special character of a reference is replaced by one of Unicode's
#: private use. One character for one keeps the line and column of every other problem right, which
#: a placeholder of another length would not.
_COVERS = {ord(special): 0xF0000 + ord(special) for special in "{}[],:#?"}
_SPECIALS = {cover: special for special, cover in _COVERS.items()}
_COVERED_REFERENCE = re.compile("\\$\U000f007b[^\U000f007d]*\U000f007d")
#: Parts of the YAML parser's messages, and the cure for each.
_YAML_CURES = {
    "'\\t'": "indent with spaces, not tabs",
    "another document": "keep one, without the --- line",
    "but got '{'": "put text that holds a { in quotes; write a reference as ${NAME} or ${NAME:-default}",
    "scanning an alias": "put a pattern that begins with * in quotes",
    "mapping values are not allowed": "put text that holds a colon in quotes, and check the indentation",
}


class ConfigError(Exception):
    """Raised when a configuration cannot be used. The message has one line for each problem."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class UnknownChannel(ConfigError):
    """Raised when a command names a channel that the configuration does not have."""


def given_config() -> Path | None:
    """Return the file that SAYSO_CONFIG names, if it names one."""
    named = os.environ.get("SAYSO_CONFIG")
    return Path(named) if named else None


def default_config() -> Path:
    """Return the file to use when none is given: SAYSO_CONFIG, else ./sayso.yaml.

    Raises ConfigError without either.
    """
    file = given_config() or DEFAULT
    if file is DEFAULT and not file.exists():
        cure = "run this where sayso.yaml is, give one with --config or SAYSO_CONFIG, or write one with `sayso init`"
        raise ConfigError([f"no configuration: there is no sayso.yaml in {Path.cwd()}: {cure}"])
    return file


def find_public_url(settings: Settings, given: str = "") -> str:
    """Return the URL by which platforms reach the web, without a slash at its end.

    It is that of the configuration, else the `given` one, else SAYSO_PUBLIC_URL, else one of this
    machine. Raises ConfigError.
    """
    if settings.public_url:
        return settings.public_url
    url = given or os.environ.get("SAYSO_PUBLIC_URL") or DEFAULT_URL
    try:
        return web_address(url)
    except ValueError as exc:
        raise ConfigError([f"SAYSO_PUBLIC_URL: {without_secrets(url)!r} {exc}"]) from None


def load_settings(
    file: Path, environ: Mapping[str, str] | None = None, *, without_secrets: bool = False
) -> Settings:
    """Read, substitute and check a configuration file.

    Raises ConfigError with all that is wrong with it.

    With `without_secrets` no secret is looked up, so that it may still be missing.
    """
    return _validated(
        _Reader(file, os.environ if environ is None else environ, without_secrets), _compose(file)
    )


def load_for_terminal(
    file: Path, channel: str | None, environ: Mapping[str, str] | None = None
) -> Settings:
    """Read a configuration for a conversation in the terminal, with the tools and policy of one
    channel, by default the first. Other channels are left out, and secrets of a platform may be
    missing. Raises ConfigError.
    """
    root = _compose(file)
    reader = _Reader(
        file, os.environ if environ is None else environ, channel_secrets_may_miss=True
    )
    channels = _value(root, "channels")
    if isinstance(channels, yaml.MappingNode):
        names = [name.value for name, _ in channels.value]
        if channel is not None and channel not in names:
            hint = did_you_mean(channel, names, "{} ")
            raise UnknownChannel(
                [f"no channel {channel!r} in {file}; {hint}known: {', '.join(map(str, names))}"]
            )
        channels.value = [pair for pair in channels.value if pair[0].value == (channel or names[0])]
        for _, only_channel in channels.value:  # the channel that it would escalate to is left out
            only_channel.value = [
                pair for pair in only_channel.value if getattr(pair[0], "value", "") != "escalate"
            ]
    return _validated(reader, root)


def _validated(reader: _Reader, root: yaml.Node) -> Settings:
    remember(secrets_of(reader.environ))
    channels = _value(root, "channels")
    if isinstance(channels, yaml.MappingNode):
        named = [_value(node, "platform") for _, node in channels.value]
    else:
        named = []
    # The secret keys of other distributions' platforms are found by the names of the platforms.
    reader.secrets = secret_fields(
        str(node.value) for node in named if isinstance(node, yaml.ScalarNode)
    )
    data = reader.read(root)
    # The file's name, in the letters that a name may have.
    if isinstance(data, dict) and data.get("name") is None:
        letters = re.sub(r"[^a-z0-9_-]+", "-", reader.file.stem.lower()).strip("-_")
        data["name"] = letters[:32].rstrip("-_") or "sayso"
    try:
        settings = Settings.model_validate(data, context=reader.origin())
    except ValidationError as exc:
        raise ConfigError(reader.all_problems(exc)) from None
    if reader.problems:
        raise ConfigError(reader.all_problems())
    if settings.public_url:
        check_consoles(settings, settings.public_url)
    return settings


def _value(node: yaml.Node, key: str) -> yaml.Node | None:
    if isinstance(node, yaml.MappingNode):
        pairs = node.value
    else:
        pairs = ()
    return next((value for name, value in pairs if name.value == key), None)


def check_consoles(settings: Settings, public_url: str) -> None:
    """Refuse consoles without a password on a bot that is reached from elsewhere.

    Raises ConfigError.
    """
    host = urlsplit(public_url).hostname or ""
    if host == "localhost" or host.endswith(".localhost") or is_loopback(host):
        return
    cure = "write `password: ${CONSOLE_PASSWORD}` there"
    says = f"this console has no password, and the bot's address {public_url} is not this machine: {cure}"
    open_ones = [name for name, channel in settings.channels.items() if channel.is_open_page]
    if open_ones:
        raise ConfigError([settings.problem(("channels", name), says) for name in open_ones])


def _compose(file: Path) -> yaml.Node:
    try:
        lines = _text(file).splitlines(keepends=True)
        covered = (
            _REFERENCE.sub(lambda match: match[0].translate(_COVERS), line) for line in lines
        )
        root = yaml.compose("".join(covered), Loader=_PlainLoader)
    except yaml.YAMLError as exc:
        raise ConfigError([_yaml_problem(file, exc)]) from exc
    except RecursionError:
        raise ConfigError([f"{file}: nested too deeply to be a configuration"]) from None
    if root is None:
        raise ConfigError([f"{file}:1:1: the file is empty: `sayso init` writes one to start from"])
    return root


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(
            [f"{file}: no such file: {_GIVE_ONE}, or write one with `sayso init`"]
        ) from None
    except UnicodeDecodeError as exc:
        line = exc.object[: exc.start].count(b"\n") + 1
        raise ConfigError([f"{file}:{line}: not text in UTF-8: {_GIVE_ONE}"]) from None
    except OSError as exc:
        raise ConfigError([f"{file}: cannot be read ({exc.strerror}): {_GIVE_ONE}"]) from exc


class _PlainLoader(yaml.SafeLoader):
    """A YAML loader that refuses anchors, aliases and tags: every value is plain data,
    written where it is used.

    References come with their special characters covered,
    since YAML would read unquoted braces as a map.
    """

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Return the next node, with its references as they are in the file.

        Raises yaml.YAMLError.
        """
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]  # the stubs leave it out
        if getattr(event, "anchor", None):
            problem = f"an anchor or alias, {event.anchor!r}: write the value out, or quote a pattern that begins with *"
            raise yaml.composer.ComposerError(None, None, problem, event.start_mark)
        if getattr(event, "tag", None):
            problem = f"a tag, {event.tag!r}: write the plain value"
            raise yaml.composer.ComposerError(None, None, problem, event.start_mark)
        node = super().compose_node(parent, index)
        if isinstance(node, yaml.ScalarNode):
            node.value = _COVERED_REFERENCE.sub(
                lambda match: match[0].translate(_SPECIALS), node.value
            )
        return node


@dataclass(slots=True)
class _Reader:
    """Converts the YAML nodes of one file to plain data, and notes the place of each value."""

    file: Path
    environ: Mapping[str, str]
    without_secrets: bool = False
    channel_secrets_may_miss: bool = False
    problems: list[tuple[Path_, str]] = field(default_factory=list)
    marks: dict[Path_, yaml.Mark] = field(default_factory=dict)
    references: dict[Path_, str] = field(default_factory=dict)
    secrets: set[str] = field(default_factory=set)

    def read(self, node: yaml.Node, path: Path_ = ()) -> Any:
        """Return the value of a node. Problems are collected, so that all are reported together."""
        self.marks.setdefault(path, node.start_mark)
        if isinstance(node, yaml.MappingNode):
            return dict(self._pairs(node, path))
        if isinstance(node, yaml.SequenceNode):
            return [self.read(child, (*path, index)) for index, child in enumerate(node.value)]
        return self._scalar(node, path)

    def origin(self) -> Origin:
        """Return the places of all values, for errors that are found later."""
        return Origin(
            self.file.resolve().parent,
            {path: self._place(mark) for path, mark in self.marks.items()},
        )

    def all_problems(self, invalid: ValidationError | None = None) -> list[str]:
        """Return all problems in the order of the file, one for each value that could not be read."""
        problems = list(self.problems)
        unread = {path for path, _ in self.problems}
        for error in invalid.errors() if invalid else ():
            path: Path_ = ()
            # Pydantic adds branches of unions and missing keys to the path in the file.
            for part in error["loc"]:
                if (*path, part) in self.marks:
                    path = (*path, part)
            if path not in unread:
                if error["type"] == "missing":
                    missing = error["loc"][-1:]
                else:
                    missing = ()
                name = ".".join(str(part) for part in (*path, *missing))
                message = self._message(dict(error), path)
                problems.append((path, self._at(path, f"{name}: {message}" if name else message)))
        lines = {path: mark.line for path, mark in self.marks.items()}
        return [text for _, text in sorted(problems, key=lambda problem: lines.get(problem[0], 0))]

    def _pairs(self, node: yaml.MappingNode, path: Path_) -> Iterator[tuple[str, Any]]:
        seen: set[str] = set()
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                problem = f"{self._place(key_node.start_mark)}: a key must be a plain word"
                self.problems.append((path, problem))
                continue
            key = str(key_node.value)
            if key in seen:
                problem = (
                    f"{self._place(key_node.start_mark)}: {key}: written twice: keep one of them"
                )
                self.problems.append(((*path, key), problem))
            seen.add(key)
            self.marks[*path, key] = key_node.start_mark
            yield key, self.read(value_node, (*path, key))

    def _scalar(self, node: yaml.Node, path: Path_) -> Any:
        text = str(node.value)
        if self._is_secret_in_clear(path, text):
            variable = re.sub(r"[^A-Z0-9_]", "_", str(path[-1]).upper())
            cure = f"a secret in clear: put it in the environment and write ${{{variable}}}"
            self._refuse(path, f"{path[-1]}: {cure}")
            return UNREAD
        if "${" in _REFERENCE.sub("", text):
            self._refuse(
                path, f"{_last(path)}: malformed ${{...}}: write ${{NAME}} or ${{file:path}}"
            )
            return ""
        if _REFERENCE.search(text):
            self.references[path] = text
            return _REFERENCE.sub(lambda match: self._resolve(match, path), text)
        if getattr(node, "style", None):
            return text
        return _plain_value(text)

    def _is_secret_in_clear(self, path: Path_, text: str) -> bool:
        """Return whether the file holds a secret or a part of one,
        also as the default of a variable.
        """
        literal = _REFERENCE.sub(lambda match: (match["default"] or "").removeprefix(":-"), text)
        if _is_redis(path):
            return bool(re.search(r"://[^/@]*:[^/@]*\w[^/@]*@", literal))
        if is_secret_place(path):  # `Bearer ${TOKEN}`: `Bearer` is no secret
            literal = re.sub(r"^(Bearer|Basic|Token) (?=$)", "", literal)
        return self._is_secret(path) and bool(re.search(r"\w", literal))

    def _is_secret(self, path: Path_) -> bool:
        return _last(path) in self.secrets or is_secret_place(path)

    def _resolve(self, match: re.Match[str], path: Path_) -> str:
        if self.without_secrets and self._is_secret(path):
            return UNREAD
        if match["file"]:
            return self._from_file(match["file"], path)
        name = match["name"]
        if name in self.environ and (self.environ[name] or match["default"] is None):
            if self._is_secret(path) or _is_redis(path):
                remember([self.environ[name]])
            return self.environ[name]
        if match["default"] is not None:
            return match["default"].removeprefix(":-")
        cure = f"export {name}=..." + (
            "" if self._is_secret(path) else f", or write ${{{name}:-default}}"
        )
        return self._missing(path, f"{_last(path)}: {name} is not set: {cure}")

    def _from_file(self, name: str, path: Path_) -> str:
        try:
            text = (self.file.parent / name).read_text(encoding="utf-8").strip()
            remember([text])
            return text
        except (OSError, ValueError) as exc:
            if isinstance(exc, OSError):
                reason = exc.strerror
            else:
                reason = "it is not text in UTF-8"
            return self._missing(
                path, f"{_last(path)}: cannot read {name!r} ({reason}): check the path"
            )

    def _missing(self, path: Path_, message: str) -> str:
        is_secret = self._is_secret(path)
        if not (is_secret and self.channel_secrets_may_miss and path[:1] == ("channels",)):
            self._refuse(path, message)
        return UNREAD if is_secret else ""

    def _message(self, error: dict[str, Any], path: Path_) -> str:
        kind = error["type"]
        key = _last(path)
        if kind == "extra_forbidden":
            close = nearest(key, keys_beside(error["loc"]))
            return f"unknown key{f': did you mean {close!r}?' if close else ': remove it'}"
        if kind == "union_tag_not_found":
            return f"platform is missing: one of {', '.join(platform_names())}"
        own_message = (
            str(error["msg"]).removeprefix("Value error, ").replace("Input should be", "must be")
        )
        message = _MESSAGES.get(kind) or own_message
        if kind in ("missing", "too_short"):
            return message
        if kind == "union_tag_invalid":
            known = ", ".join(platform_names())
            return f"unknown platform: one of {known}" + self._value_text(
                (*path, "platform"), error["input"]["platform"]
            )
        return message + self._value_text(path, error["input"])

    def _value_text(self, path: Path_, value: Any) -> str:
        """Return the value for a message, unless it is a secret or
        comes from the environment or a file.
        """
        # A URL with a login.
        if self._is_secret(path) or _is_redis(path) or re.search(r"://[^/]*@", str(value)):
            return ""
        if path in self.references:
            return f" (it is what {self.references[path]} says)"
        if isinstance(value, list | dict):
            return f" (it is a {'list' if isinstance(value, list) else 'section'})"
        if value is None:
            return " (it is empty)"
        return f" (it is {value!r})"

    def _refuse(self, path: Path_, message: str) -> None:
        self.problems.append((path, self._at(path, message)))

    def _at(self, path: Path_, message: str) -> str:
        return f"{self._place(self.marks[path]) if path in self.marks else self.file}: {message}"

    def _place(self, mark: yaml.Mark) -> str:
        return f"{self.file}:{mark.line + 1}:{mark.column + 1}"


def _is_redis(path: Path_) -> bool:
    """Whether a value is the URL of a Redis, which may hold a password."""
    return _last(path) in ("redis_url", "queue_url")


def _last(path: Path_) -> str:
    return str(path[-1]) if path else ""


def _yaml_problem(file: Path, exc: yaml.YAMLError) -> str:
    if isinstance(exc, yaml.reader.ReaderError):
        return f"{file}: not YAML: it holds a control character (#x{exc.character:04x}), so it is probably no text"
    if not isinstance(exc, yaml.MarkedYAMLError):
        return f"{file}: not YAML: {exc}"
    mark = exc.problem_mark or exc.context_mark
    if mark:
        where = f"{file}:{mark.line + 1}:{mark.column + 1}"
    else:
        where = str(file)
    message = f"{exc.context or ''} {exc.problem or ''}"
    cure = next((f": {cure}" for part, cure in _YAML_CURES.items() if part in message), "")
    if isinstance(exc, yaml.composer.ComposerError):
        kind = ""
    else:
        kind = "not YAML: "
    return f"{where}: {kind}{exc.problem}{cure}"


def _plain_value(text: str) -> Any:
    """Return the value of an unquoted scalar by YAML 1.2: `on`, `no` and `+49123` are text."""
    if text in ("", "~", "null"):
        return None
    if text in ("true", "false"):
        return text == "true"
    if re.fullmatch(r"-?(0|[1-9][0-9]*)", text):
        return int(text)
    if re.fullmatch(r"-?[0-9]+\.[0-9]+", text):
        return float(text)
    return text
