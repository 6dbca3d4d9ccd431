"""Settings of sources of tools, and of selectors that choose which tools a model is shown.

The docstring below a field is its text in the reference of the YAML.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from sayso.channels.base import (
    Count,
    Number,
    OptionalSecret,
    Secret,
    Section,
    refuse_none,
)
from sayso.config.settings.agent import OptionalServerUrl, ServerUrl
from sayso.infra.urls import has_http_scheme, is_http_url

#: A namespace is the beginning of tool names, which have at most 64 characters.
NAMESPACE = r"^[A-Za-z0-9_-]{1,32}$"
#: The keys and indexes that lead to a value of the YAML: from the root, or from a section where that
#: is said.
YamlPath = tuple[str | int, ...]
#: A section below `tools` has exactly one of these keys, which says what kind of source it is.
SOURCE_KINDS = ("mcp", "openapi", "toolbox", "module")


class RefusedValue(NamedTuple):
    """A value that a section cannot have, because of other values in it."""

    #: The path of the value, from the section.
    path: YamlPath
    #: What is wrong, with the cure.
    problem: str
    value: Any


def refuse_values(section: type, refused: Iterable[RefusedValue]) -> None:
    """Raise pydantic.ValidationError where values of a section are refused.

    A ValueError would be reported at the line of the section. This reports each value at its own.
    """
    errors = [
        InitErrorDetails(
            type=PydanticCustomError("refused", "{problem}", {"problem": each.problem}),
            loc=each.path,
            input=each.value,
        )
        for each in refused
    ]
    if errors:
        raise ValidationError.from_exception_data(section.__name__, errors)


class RolesSettings(Section):
    """The tools that each role may use, and the role of each user."""

    allowed: dict[str, list[str]] = Field(min_length=1)
    """The names and patterns of the tools that each role may use.

    Example: `{staff: ['*'], guest: [find_*]}`.
    """
    users: dict[str, str] = {}
    """The role of each user id. Example: `{U1: staff}`."""
    default: str = ""
    """The role of all other users. Without it they may use no tool. Example: `guest`."""

    @field_validator("allowed")
    @classmethod
    def _each_once(cls, allowed: dict[str, list[str]]) -> dict[str, list[str]]:
        # RoleBasedSelector ignores the case of roles.
        if len({role.lower() for role in allowed}) < len(allowed):
            raise ValueError("a role is given twice, in upper and lower case: keep one")
        return allowed

    @model_validator(mode="after")
    def _roles_exist(self) -> Self:
        roles: list[tuple[YamlPath, str]] = [
            (("users", user), role) for user, role in self.users.items()
        ]
        if self.default:
            roles.append((("default",), self.default))

        known = {role.lower() for role in self.allowed}
        problem = f"names no role of allowed; known: {', '.join(self.allowed)}"
        unknown = [
            RefusedValue(path, problem, role) for path, role in roles if role.lower() not in known
        ]
        refuse_values(type(self), unknown)
        return self


class EmbeddingSettings(Section):
    """The selector that shows the tools of a large catalog that a conversation needs.

    Tools that were shown stay shown in the conversation, as far as there is room.
    """

    top_k: Count = Field(default=5, ge=1, le=1000)
    """How many tools a message may add to those shown before in its conversation: the nearest to
    the message. Example: `8`.
    """
    show_all_tokens: Count = Field(default=10_000, ge=0, le=1_000_000)
    """All tools are shown while their schemas have at most this many tokens together. Tools that
    the user may not use do not count. Example: `4000`.
    """
    model: str = Field(default="text-embedding-3-small", min_length=1)
    """The embedding model at `base_url`. Example: `text-embedding-3-large`."""
    base_url: OptionalServerUrl = None
    """The server that computes vectors. Without it tools and message are compared by their words,
    then by their letters. Example: `https://api.openai.com/v1`.
    """
    api_key: OptionalSecret = None
    """The server's key. Example: `${OPENAI_API_KEY}`."""

    @model_validator(mode="after")
    def _has_a_server(self) -> Self:
        if self.base_url is None and self.model_fields_set & {"model", "api_key"}:
            raise ValueError(
                "model and api_key are for a server: add base_url: https://api.openai.com/v1"
            )
        return self


def _list_means_all(value: object) -> object:
    """Return the section that a list of selectors stands for: one with the list as `all`."""
    if isinstance(value, list):
        return {"all": value}
    return value


class SelectorSettings(Section):
    """What chooses the tools that a model is shown.

    It has exactly one of `keyword`, `roles`, `embedding`, `any`, `all` and `plugin`, with its
    options.
    """

    keyword: dict[str, list[Annotated[str, Field(min_length=1)]]] | None = None
    """The words that show each tool. A tool is shown when the message has one of its words.
    Example: `{refund: [refund, money back]}`.
    """
    whole_words: bool = False
    """Whether a word of `keyword` must stand alone, not inside a longer word. Example: `true`."""
    roles: RolesSettings | None = None
    """Who may use which tools. Example: `{allowed: {staff: ['*']}, users: {U1: staff}}`."""
    embedding: EmbeddingSettings | None = None
    """Shows the tools that are nearest to the message.

    `{}` for the defaults. Example: `{top_k: 8}`.
    """
    any_of: list[Selector] | None = Field(default=None, alias="any", min_length=1)
    """A tool is shown if one of these shows it. So a selector without roles shows its tools to every
    user.

    Example: `[{embedding: {}}, {keyword: {refund: [refund]}}]`.
    """
    all_of: list[Selector] | None = Field(default=None, alias="all", min_length=1)
    """Selectors that must all show a tool: each chooses from what those before it chose. A list in
    place of a section means the same. Example:
    `[{roles: {allowed: {staff: ['*']}, default: staff}}, {embedding: {}}]`.
    """
    plugin: str | None = None
    """A selector of an installed distribution, by the name of its entry point.

    Example: `by_department`.
    """
    options: dict[str, Any] = {}
    """The arguments of the plugin. Example: `{department: sales}`."""
    on_error: Literal["none", "all"] = "none"
    """Which tools are shown while the plugin fails. Example: `all`."""
    always: list[str] = []
    """Tools that are shown besides those that are chosen. Example: `[help_*]`."""

    @model_validator(mode="after")
    def _of_one_kind(self) -> Self:
        if "embedding" in self.model_fields_set and self.embedding is None:
            raise ValueError("embedding has nothing below it: write `embedding: {}`")
        kinds = [kind for kind in _SELECTORS if getattr(self, kind) is not None]
        if len(kinds) != 1:
            raise ValueError(
                "choose one of keyword, roles, embedding, any, all, plugin; write several as a list"
            )
        for option, kind in _SELECTOR_OPTIONS.items():
            if option in self.model_fields_set and kind != kinds[0]:
                raise ValueError(f"{option} belongs to {kind}: remove it")
        if self.always and self.has_roles:
            raise ValueError(
                "always would give the tools of roles to everybody: name them in allowed, for each role"
            )
        return self

    @property
    def has_roles(self) -> bool:
        """Whether the selector or a part of it has roles.

        An `any` counts too, although a part of it without roles shows its tools to every user.
        """
        if self.roles is not None:
            return True
        parts = [*(self.any_of or ()), *(self.all_of or ())]
        return any(part.has_roles for part in parts)


#: The kinds of selectors. A selector has exactly one of these fields.
_SELECTORS = ("keyword", "roles", "embedding", "any_of", "all_of", "plugin")
#: The kind that each option belongs to, for options of one kind only.
_SELECTOR_OPTIONS = {"whole_words": "keyword", "options": "plugin", "on_error": "plugin"}
#: A selector, or a list of selectors that must all show a tool. `SelectorSettings` names it before
#: this line: pydantic resolves the name when the class is first used.
Selector = Annotated[
    SelectorSettings,
    BeforeValidator(
        _list_means_all, json_schema_input_type=SelectorSettings | list[SelectorSettings]
    ),
]


class SourceSettings(Section):
    """The keys that every source of tools has."""

    namespace: Annotated[str, Field(pattern=NAMESPACE)] | None = None
    """What precedes every tool name of this source, as in `crm-find_customer`.

    Example: `crm`.
    """
    include: Annotated[list[str] | None, BeforeValidator(refuse_none)] = None
    """Names and patterns of the source's own names that are taken.

    Without it: all. Example: `[find_*]`.
    """
    exclude: list[str] = []
    """Names and patterns that are left out. Example: `[delete_*]`."""
    confirm: Literal["hints", "always", "never"] | list[str] = "hints"
    """Which of the tools ask first: those that the source itself calls dangerous (`hints`), all,
    none, or these patterns. Example: `always`.
    """
    timeout: Number | None = Field(default=None, gt=0, le=600)
    """The most seconds for one call. Without it: 60 for MCP, 30 for OpenAPI,
    else what the author of the tool says. Example: `10`.
    """

    @field_validator("confirm", mode="before")
    @classmethod
    def _known_word(cls, confirm: object) -> object:
        if not isinstance(confirm, list) and confirm not in ("hints", "always", "never"):
            raise ValueError(
                "unknown: write hints, always, never, or a list of patterns such as [delete_*]"
            )
        return confirm


class McpSettings(Section):
    """An MCP server: either a program to start (`command`), or a `url`."""

    command: list[str] | None = Field(default=None, min_length=1, repr=False)
    """The program of a server that speaks MCP over its standard input and output, with its
    arguments. Example: `[npx, -y, some-server]`.
    """
    cwd: str | None = None
    """The folder in which the program is started. Example: `./servers`."""
    env: dict[str, Secret] = {}
    """Environment variables of the program, which are secrets. It sees no other variables of ours
    than HOME, LOGNAME, PATH, SHELL, TERM and USER. Example: `{TOKEN: "${CRM_TOKEN}"}`.
    """
    url: Annotated[ServerUrl | None, Field(repr=False)] = None
    """The address of a server that speaks MCP over HTTP. Example: `https://mcp.example.com/mcp`."""
    headers: dict[str, Secret] = {}
    """Headers of every request, which are secrets. `Bearer`, `Basic` or `Token` may stand before
    the reference. Example: `{Authorization: "Bearer ${MCP_TOKEN}"}`.
    """

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError(
                "a server is either a command, such as [npx, some-server], or a url: give one of them"
            )
        if self.url is not None and (self.env or self.cwd):
            raise ValueError("env and cwd are for a command: a url takes headers")
        if self.command is not None and self.headers:
            raise ValueError("headers are for a url: a command takes env")
        return self


class McpSource(SourceSettings):
    """The tools of an MCP server."""

    mcp: McpSettings
    """The server. Example: `{url: https://mcp.example.com/mcp}`."""


class BasicSettings(Section):
    """User name and password for HTTP basic authentication."""

    user: str
    """The user name. Example: `bot`."""
    password: Secret
    """The password. Example: `${API_PASSWORD}`."""


class AuthSettings(Section):
    """How calls authenticate: with one of bearer, header, query, cookie or basic."""

    bearer: OptionalSecret = None
    """A token that is sent as `Authorization: Bearer`. Example: `${API_TOKEN}`."""
    header: str | None = None
    """The header that holds `value`. Example: `X-Api-Key`."""
    query: str | None = None
    """The query parameter that holds `value`. Example: `api_key`."""
    cookie: str | None = None
    """The cookie that holds `value`. Example: `session`."""
    basic: BasicSettings | None = None
    """User and password of HTTP basic authentication.

    Example: `{user: bot, password: "${API_PASSWORD}"}`.
    """
    value: OptionalSecret = None
    """The key for `header`, `query` or `cookie`. Example: `${API_KEY}`."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        named = [
            name
            for name in ("bearer", "header", "query", "cookie", "basic")
            if getattr(self, name) is not None
        ]
        if len(named) != 1:
            raise ValueError(
                "calls are signed in one way: give one of bearer, header, query, cookie, basic"
            )
        needs_value = named[0] in ("header", "query", "cookie")
        if needs_value and self.value is None:
            raise ValueError(
                "header, query and cookie name where the key goes: the key itself is value: ${KEY}"
            )
        if not needs_value and self.value is not None:
            raise ValueError(f"value is for header, query or cookie, not for {named[0]}: remove it")
        return self


class OpenApiSource(SourceSettings):
    """The operations of an OpenAPI document: a file next to the configuration, or a URL."""

    openapi: str = Field(min_length=1)
    """The document: a file next to the YAML, or a URL. Example: `./petstore.yaml`."""
    base_url: OptionalServerUrl = None
    """The address of the API, where it is not the one in the document.

    Example: `https://pets.example.com/v1`.
    """
    auth: AuthSettings | None = None
    """How calls authenticate. Example: `{bearer: "${PETS_TOKEN}"}`."""
    more_auth: list[AuthSettings] = []
    """Further keys, for an API that takes several at once.
    Example: `[{header: X-App, value: "${PETS_APP}"}]`.
    """
    arguments: dict[str, str | int | float | bool] = {}
    """Fixed values of parameters. They are sent with every operation that has them and never shown
    to a model. Example: `{tenant: shop}`.
    """

    @field_validator("openapi")
    @classmethod
    def _a_document(cls, document: str) -> str:
        if has_http_scheme(document) and not is_http_url(document):
            raise ValueError("is not a URL: write it as https://api.example.com/openapi.json")
        return document


class ToolboxSource(SourceSettings):
    """Families of the tools that Sayso ships."""

    toolbox: list[str] = Field(min_length=1)
    """The families of tools that are taken. Example: `[calculator, files]`."""
    folder: str | None = None
    """The folder that the tools for files may use. Example: `./shared`."""
    hosts: list[str] = []
    """The hosts that the tools for web pages may read. Example: `[example.com]`."""


class ModuleSource(SourceSettings):
    """A module, file or folder whose tools get a prefix, or some of whose tools are left out."""

    module: str = Field(min_length=1)
    """The module, file or folder with `@tool` functions. Example: `sayso.examples.invoices`."""


#: The tag of an entry that is a text: a module, a file or a folder.
_TEXT_TAG = "text entry"


def _tag_of(entry: object) -> str | None:
    """Return the tag by which pydantic chooses the type of an entry; None for no known kind.

    Pydantic puts the tag into the path of an error, between the keys of the YAML. The loader drops
    each part of the path that is no key of the file (`_path_in_file`). So that it drops the tag, no
    tag may be a key: "mcp" would be one. Our keys have no spaces, so each tag has one.
    """
    if isinstance(entry, str):
        return _TEXT_TAG
    if isinstance(entry, SourceSettings):
        return next(f"{kind} source" for kind in SOURCE_KINDS if hasattr(entry, kind))
    kinds = [kind for kind in SOURCE_KINDS if isinstance(entry, dict) and kind in entry]
    if len(kinds) == 1:
        return f"{kinds[0]} source"
    return None


#: An entry of `tools`: a source of any kind.
AnySource = Annotated[
    Annotated[str, Tag(_TEXT_TAG)]
    | Annotated[McpSource, Tag("mcp source")]
    | Annotated[OpenApiSource, Tag("openapi source")]
    | Annotated[ToolboxSource, Tag("toolbox source")]
    | Annotated[ModuleSource, Tag("module source")],
    Discriminator(
        _tag_of,
        custom_error_type="source_kind",
        custom_error_message="write a module, a file, or a section with one of mcp, openapi, toolbox, module",
    ),
]
