"""Read a YAML file into checked settings, or report every problem in it with file, line and cure.

`load_settings` does it for a bot, `load_for_terminal` for one channel in a terminal. A value may be
a *reference*: `${NAME}` stands for a variable of the environment, `${file:path}` for the content of
a file. A secret must be one, so that the YAML file holds none.
"""

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

from sayso.channels.registry import platform_names
from sayso.channels.setup import is_loopback
from sayso.config.settings.schema import (
    CHANNEL_NAME,
    Origin,
    Settings,
    is_secret_place,
    keys_beside,
    secret_fields,
)
from sayso.config.settings.tools import NAMESPACE, YamlPath
from sayso.infra.redaction import remember, secrets_of
from sayso.infra.spelling import did_you_mean, nearest
from sayso.infra.urls import redacted_url, web_address

#: ${NAME}, ${NAME:-default} and ${file:path}; relative paths start in the folder of the YAML.
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
    "missing": "missing: add it",
}
#: What the patterns of names mean, by the pattern.
_PATTERN_MESSAGES = {
    CHANNEL_NAME: "a name has 1 to 64 letters, digits and . _ -",
    NAMESPACE: "a namespace has 1 to 32 letters, digits and _ -",
}
#: The value in place of a secret that was not looked up, or that the file has in clear.
UNREAD = "unread"
#: The cure where the configuration file cannot be read.
_FILE_CURE = "give a YAML file with --config or SAYSO_CONFIG"
#: The configuration in the current folder that is used when none is given.
DEFAULT_FILE = Path("sayso.yaml")
#: The address of the bot where none is configured.
DEFAULT_URL = "http://127.0.0.1:8000"
#: What `sayso demo` runs: it needs no account.
DEMO = Path(__file__).parents[1] / "demo.yaml"
#: While the YAML parser reads, the special characters of a reference are replaced by characters of
#: Unicode's private use. So a reference needs no quotes between { } or [ ] either: people write
#: `{platform: telegram, token: ${TOKEN}}`, and YAML alone would read `{TOKEN}` as a map and report
#: a fault elsewhere. One character for one keeps the line and column of every other problem right;
#: a placeholder of another length would not.
_COVERS = {ord(special): 0xF0000 + ord(special) for special in "{}[],:#?"}
#: The same the other way round.
_SPECIALS = {cover: special for special, cover in _COVERS.items()}
#: A reference whose special characters are replaced.
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
    given = given_config()
    if given is None and not DEFAULT_FILE.exists():
        cure = "run this where sayso.yaml is, give one with --config or SAYSO_CONFIG, or write one with `sayso init`"
        raise ConfigError([f"no configuration: there is no sayso.yaml in {Path.cwd()}: {cure}"])
    return given or DEFAULT_FILE


def find_public_url(settings: Settings, given: str = "") -> str:
    """Return the URL by which platforms reach the web, without a slash at its end.

    It is that of the configuration, else the `given` one ("" for none), else SAYSO_PUBLIC_URL, else
    the default one on this machine. Raises ConfigError for a text that is not a URL.
    """
    if settings.public_url:
        return settings.public_url
    url = given or os.environ.get("SAYSO_PUBLIC_URL") or DEFAULT_URL
    try:
        return web_address(url)
    except ValueError as exc:
        raise ConfigError([f"SAYSO_PUBLIC_URL: {redacted_url(url)!r} {exc}"]) from None


def load_settings(
    file: Path, environ: Mapping[str, str] | None = None, *, without_secrets: bool = False
) -> Settings:
    """Read a configuration file, look up its references, and check it.

    `environ` has the variables, None for those of this process. With `without_secrets` no secret is
    looked up, so that it may still be missing. Raises ConfigError with all problems of the file.
    """
    variables = os.environ if environ is None else environ
    root = _compose(file)
    reader = _Reader(file, variables, _secret_keys(root), without_secrets=without_secrets)
    return _validate(reader, root)


def load_for_terminal(
    file: Path, channel: str | None, environ: Mapping[str, str] | None = None
) -> Settings:
    """Read a configuration for a conversation in the terminal.

    It has the tools and the policy of one channel, by default the first. Other channels are left
    out, and secrets of a platform may be missing. Raises ConfigError, and UnknownChannel for a
    channel that the file does not have.
    """
    root = _compose(file)
    _keep_one_channel(root, channel, file)
    variables = os.environ if environ is None else environ
    reader = _Reader(file, variables, _secret_keys(root), channel_secrets_may_be_missing=True)
    return _validate(reader, root)


def _keep_one_channel(root: yaml.Node, channel: str | None, file: Path) -> None:
    """Remove all channels from the nodes of a file but one: `channel`, or the first for None.

    Raises UnknownChannel. A section of channels that is empty or malformed is left as it stands,
    for the validation to report.
    """
    channels = _value_node(root, "channels")
    if not isinstance(channels, yaml.MappingNode) or not channels.value:
        return

    names = [name.value for name, _ in channels.value]
    if channel is not None and channel not in names:
        hint = did_you_mean(channel, names, "{} ")
        known = ", ".join(map(str, names))
        raise UnknownChannel([f"no channel {channel!r} in {file}; {hint}known: {known}"])
    wanted = channel or names[0]
    channels.value = [pair for pair in channels.value if pair[0].value == wanted]

    # The channel that it would escalate to is left out, so `escalate` would name no channel.
    for _, only_channel in channels.value:
        if isinstance(only_channel, yaml.MappingNode):
            only_channel.value = [
                pair for pair in only_channel.value if pair[0].value != "escalate"
            ]
        _leave_out_approval_places(only_channel)

    # The accounts of people on the other channels would name no channel, either.
    people = _value_node(root, "people")
    if isinstance(people, yaml.MappingNode):
        for _, person in people.value:
            accounts = _value_node(person, "accounts")
            if isinstance(accounts, yaml.MappingNode):
                accounts.value = [pair for pair in accounts.value if pair[0].value == wanted]
    # Nobody on a platform is asked, so its groups are not read.
    if isinstance(root, yaml.MappingNode):
        root.value = [pair for pair in root.value if pair[0].value != "roles"]


def _leave_out_approval_places(channel: yaml.Node) -> None:
    """Remove where others are asked about the calls of tools: that channel may be left out."""
    policy = _value_node(channel, "policy")
    approvals = _value_node(policy, "approval") if policy else None
    if not isinstance(approvals, yaml.MappingNode):
        return
    for _, approval in approvals.value:
        if isinstance(approval, yaml.MappingNode):
            approval.value = [pair for pair in approval.value if pair[0].value != "on"]


def _validate(reader: _Reader, root: yaml.Node) -> Settings:
    """Return the checked settings of a file. Raises ConfigError with all problems of it."""
    # From here on the secrets of the environment are left out of every message and log line.
    remember(secrets_of(reader.environ))
    data = reader.read(root)

    # The default name of a bot is that of its file, in the letters that DEPLOYMENT_NAME allows.
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


def _secret_keys(root: yaml.Node) -> set[str]:
    """Return the keys whose values are secrets, also those of the platforms that plugins add."""
    channels = _value_node(root, "channels")
    if not isinstance(channels, yaml.MappingNode):
        return secret_fields()
    platforms = [_value_node(node, "platform") for _, node in channels.value]
    return secret_fields(
        str(platform.value) for platform in platforms if isinstance(platform, yaml.ScalarNode)
    )


def _value_node(node: yaml.Node, key: str) -> yaml.Node | None:
    """Return the node of a key's value, None if `node` does not have the key."""
    if not isinstance(node, yaml.MappingNode):
        return None
    for name, value in node.value:
        if name.value == key:
            value_node: yaml.Node = value
            return value_node
    return None


def check_consoles(settings: Settings, public_url: str) -> None:
    """Refuse consoles without a password on a bot that is reached from elsewhere.

    Raises ConfigError.
    """
    host = urlsplit(public_url).hostname or ""
    if host == "localhost" or host.endswith(".localhost") or is_loopback(host):
        return
    cure = "write `password: ${CONSOLE_PASSWORD}` there"
    problem = f"this console has no password, and the bot's address {public_url} is not this machine: {cure}"
    open_pages = [name for name, channel in settings.channels.items() if channel.is_open_page]
    if open_pages:
        raise ConfigError([settings.problem(("channels", name), problem) for name in open_pages])


def _compose(file: Path) -> yaml.Node:
    """Parse a file into the nodes of YAML, each with its line and column. Raises ConfigError."""
    try:
        # Line by line: a reference that is not closed must not reach into the next line.
        lines = _text(file).splitlines(keepends=True)
        covered_lines = [
            _REFERENCE.sub(lambda match: match[0].translate(_COVERS), line) for line in lines
        ]
        root = yaml.compose("".join(covered_lines), Loader=_PlainLoader)
    except yaml.YAMLError as exc:
        raise ConfigError([_yaml_problem(file, exc)]) from exc
    except RecursionError:
        raise ConfigError([f"{file}: nested too deeply to be a configuration"]) from None
    if root is None:
        raise ConfigError([f"{file}:1:1: the file is empty: `sayso init` writes one to start from"])
    return root


def _text(file: Path) -> str:
    """Return the content of the configuration file. Raises ConfigError."""
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(
            [f"{file}: no such file: {_FILE_CURE}, or write one with `sayso init`"]
        ) from None
    except UnicodeDecodeError as exc:
        line = exc.object[: exc.start].count(b"\n") + 1
        raise ConfigError([f"{file}:{line}: not text in UTF-8: {_FILE_CURE}"]) from None
    except OSError as exc:
        raise ConfigError([f"{file}: cannot be read ({exc.strerror}): {_FILE_CURE}"]) from exc


class _PlainLoader(yaml.SafeLoader):
    """A YAML loader that refuses anchors, aliases and tags.

    So every value is plain data, written where it is used. References come with their special
    characters replaced (`_COVERS`), since YAML would read unquoted braces as a map.
    """

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Return the next node, with its references as the file has them. Raises yaml.YAMLError."""
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
    """Converts the YAML nodes of one file to plain data. Lives as long as the reading of it.

    A value is known by its path: the keys and positions that lead to it from the root.
    """

    file: Path
    #: The variables that references name.
    environ: Mapping[str, str]
    #: The keys whose values are secrets.
    secret_keys: set[str]
    #: Whether no secret is looked up.
    without_secrets: bool = False
    #: Whether a secret below `channels` may be missing.
    channel_secrets_may_be_missing: bool = False
    #: The problems that were met, each with the path of its value.
    problems: list[tuple[YamlPath, str]] = field(default_factory=list)
    #: Where each value stands in the file.
    marks: dict[YamlPath, yaml.Mark] = field(default_factory=dict)
    #: What the file says where a value is a reference.
    references: dict[YamlPath, str] = field(default_factory=dict)

    def read(self, node: yaml.Node, path: YamlPath = ()) -> Any:
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
        """Return all problems, sorted by line.

        `invalid` are those that pydantic found, None for none. A value that could not be read has
        its own problem already, so pydantic's is left out.
        """
        problems = list(self.problems)
        unread_paths = {path for path, _ in self.problems}
        for error in invalid.errors() if invalid else ():
            path = self._path_in_file(error["loc"])
            if path in unread_paths:
                continue
            names = path
            if error["type"] == "missing":
                names = (*path, *error["loc"][-1:])
            message = self._message(dict(error), path)
            if names:
                message = f"{'.'.join(map(str, names))}: {message}"
            problems.append((path, self._at(path, message)))

        lines = {path: mark.line for path, mark in self.marks.items()}
        problems.sort(key=lambda problem: lines.get(problem[0], 0))
        return [text for _, text in problems]

    def _path_in_file(self, loc: YamlPath) -> YamlPath:
        """Return the path of the value that an error of pydantic is about.

        `loc` is that of the error. It also names branches of unions and missing keys.
        """
        path: YamlPath = ()
        for part in loc:
            if (*path, part) in self.marks:
                path = (*path, part)
        return path

    def _pairs(self, node: yaml.MappingNode, path: YamlPath) -> Iterator[tuple[str, Any]]:
        """Yield the keys of a section with their values. A key that stands twice is a problem."""
        keys: set[str] = set()
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                problem = f"{self._place(key_node.start_mark)}: a key must be a plain word"
                self.problems.append((path, problem))
                continue
            key = str(key_node.value)
            if key in keys:
                place = self._place(key_node.start_mark)
                problem = f"{place}: {key}: written twice: keep one of them"
                self.problems.append(((*path, key), problem))
            keys.add(key)
            self.marks[*path, key] = key_node.start_mark
            yield key, self.read(value_node, (*path, key))

    def _scalar(self, node: yaml.Node, path: YamlPath) -> Any:
        """Return the value of a single value, with its references looked up."""
        text = str(node.value)
        if self._is_secret_in_clear(path, text):
            variable = re.sub(r"[^A-Z0-9_]", "_", str(path[-1]).upper())
            cure = f"a secret in clear: put it in the environment and write ${{{variable}}}"
            self._refuse(path, f"{path[-1]}: {cure}")
            return UNREAD

        if "${" in _REFERENCE.sub("", text):
            problem = f"{_last(path)}: malformed ${{...}}: write ${{NAME}} or ${{file:path}}"
            self._refuse(path, problem)
            return ""
        if _REFERENCE.search(text):
            self.references[path] = text
            return _REFERENCE.sub(lambda match: self._resolve(match, path), text)

        is_quoted = bool(getattr(node, "style", None))
        return text if is_quoted else _plain_value(text)

    def _is_secret_in_clear(self, path: YamlPath, text: str) -> bool:
        """Return whether the file holds a secret or a part of one.

        The default of a reference counts, too, as in `${TOKEN:-abc}`.
        """
        literal = _REFERENCE.sub(lambda match: (match["default"] or "").removeprefix(":-"), text)
        if _is_redis(path):
            has_password = re.search(r"://[^/@]*:[^/@]*\w[^/@]*@", literal)
            return bool(has_password)
        # A header such as `Bearer ${TOKEN}`: its first word is not secret.
        if is_secret_place(path) and re.fullmatch(r"(Bearer|Basic|Token) \n?", literal):
            return False
        return self._is_secret(path) and bool(re.search(r"\w", literal))

    def _is_secret(self, path: YamlPath) -> bool:
        return _last(path) in self.secret_keys or is_secret_place(path)

    def _resolve(self, match: re.Match[str], path: YamlPath) -> str:
        """Return what a reference stands for, of a match of `_REFERENCE` in the value at `path`."""
        if self.without_secrets and self._is_secret(path):
            return UNREAD
        if match["file"]:
            return self._from_file(match["file"], path)

        # As in a shell, an empty variable has the default of the reference, if it has one.
        name = match["name"]
        value = self.environ.get(name)
        if value is not None and self._is_secret(path):
            # The line break at the end of a mounted secret is no part of it. No header could be
            # sent with it, and the error of the HTTP library would show the secret.
            value = value.strip()
        has_default = match["default"] is not None
        if value is not None and (value or not has_default):
            if self._is_secret(path) or _is_redis(path):
                remember([value])
            return value
        if has_default:
            return match["default"].removeprefix(":-")

        cure = f"export {name}=..."
        if not self._is_secret(path):
            cure += f", or write ${{{name}:-default}}"
        return self._missing(path, f"{_last(path)}: {name} is not set: {cure}")

    def _from_file(self, name: str, path: YamlPath) -> str:
        """Return the content of a file that a reference names. Relative names start at the YAML."""
        try:
            text = (self.file.parent / name).read_text(encoding="utf-8").strip()
        except OSError as exc:
            problem = f"cannot read {name!r} ({exc.strerror}): check the path"
            return self._missing(path, f"{_last(path)}: {problem}")
        except ValueError:
            problem = f"cannot read {name!r} (it is not text in UTF-8): check the path"
            return self._missing(path, f"{_last(path)}: {problem}")
        remember([text])
        return text

    def _missing(self, path: YamlPath, message: str) -> str:
        """Note that a reference leads to nothing, unless it may. Return the value to go on with."""
        is_secret = self._is_secret(path)
        is_channel_secret = is_secret and path[:1] == ("channels",)
        if not (is_channel_secret and self.channel_secrets_may_be_missing):
            self._refuse(path, message)
        return UNREAD if is_secret else ""

    def _message(self, error: dict[str, Any], path: YamlPath) -> str:
        """Return an error of pydantic in the words of a person who writes YAML."""
        kind = error["type"]
        if kind == "extra_forbidden":
            close = nearest(_last(path), keys_beside(error["loc"]))
            cure = f"did you mean {close!r}?" if close else "remove it"
            return f"unknown key: {cure}"
        if kind == "union_tag_not_found":
            return f"platform is missing: one of {', '.join(platform_names())}"
        if kind == "union_tag_invalid":
            value = self._value_text((*path, "platform"), error["input"]["platform"])
            return f"unknown platform: one of {', '.join(platform_names())}{value}"

        pydantic_text = str(error["msg"]).removeprefix("Value error, ")
        message = pydantic_text.replace("Input should be", "must be")
        if kind == "string_pattern_mismatch":
            message = _PATTERN_MESSAGES.get(error["ctx"]["pattern"], message)
        else:
            message = _MESSAGES.get(kind, message)
        if kind in ("missing", "too_short"):
            return message
        return message + self._value_text(path, error["input"])

    def _value_text(self, path: YamlPath, value: Any) -> str:
        """Return the value for a message, in brackets after a space.

        It is "" for a secret and for a URL with a login. Of a reference it is what the file says.
        """
        # A URL that is refused may be malformed just because of a character in its password.
        has_login = re.search(r":.*@", str(value), re.DOTALL)
        if has_login or self._is_secret(path) or _is_redis(path):
            return ""
        if path in self.references:
            return f" (it is what {self.references[path]} says)"
        if isinstance(value, list):
            return " (it is a list)"
        if isinstance(value, dict):
            return " (it is a section)"
        if value is None:
            return " (it is empty)"
        if isinstance(value, str) and "://" in value:
            value = redacted_url(value)
        return f" (it is {value!r})"

    def _refuse(self, path: YamlPath, message: str) -> None:
        """Note a problem of the value at `path`."""
        self.problems.append((path, self._at(path, message)))

    def _at(self, path: YamlPath, message: str) -> str:
        """Return a message after the place of a value."""
        mark = self.marks.get(path)
        place = self._place(mark) if mark else self.file
        return f"{place}: {message}"

    def _place(self, mark: yaml.Mark) -> str:
        return f"{self.file}:{mark.line + 1}:{mark.column + 1}"


def _is_redis(path: YamlPath) -> bool:
    """Return whether a value is the URL of a Redis, which may hold a password."""
    return _last(path) in ("redis_url", "queue_url")


def _last(path: YamlPath) -> str:
    return str(path[-1]) if path else ""


def _yaml_problem(file: Path, exc: yaml.YAMLError) -> str:
    """Return the problem of a file that is not YAML, with its place and a cure if one is known."""
    if isinstance(exc, yaml.reader.ReaderError):
        return f"{file}: not YAML: it holds a control character (#x{exc.character:04x}), so it is probably no text"
    if not isinstance(exc, yaml.MarkedYAMLError):
        return f"{file}: not YAML: {exc}"

    where = str(file)
    mark = exc.problem_mark or exc.context_mark
    if mark:
        where = f"{file}:{mark.line + 1}:{mark.column + 1}"
    # What `_PlainLoader` refuses is YAML, and its text names the cure.
    problem = str(exc.problem)
    if not isinstance(exc, yaml.composer.ComposerError):
        problem = f"not YAML: {problem}"

    message = f"{exc.context or ''} {exc.problem or ''}"
    cures = [cure for part, cure in _YAML_CURES.items() if part in message]
    if cures:
        problem += f": {cures[0]}"
    return f"{where}: {problem}"


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
