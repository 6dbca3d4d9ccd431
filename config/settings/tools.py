"""Settings of tool sources, and of selectors that choose what a model is shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, ValidationError, field_validator, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from sayso.channels.settings import NotBoolean, OptionalSecret, OptionalUrl, Secret, Section
from sayso.config.settings.base import NAMESPACE, OptionalServerUrl, Path_, ServerUrl

#: A section below `tools` has exactly one of these keys, which says what kind of source it is.
SOURCE_KINDS = ("mcp", "openapi", "toolbox", "module")


class RolesSettings(Section):
    """The tools that each role may use, and the role of each user. Other users have the `default` role; "" is none."""

    allowed: dict[str, list[str]] = Field(min_length=1)
    users: dict[str, str] = {}
    default: str = ""

    @field_validator("allowed")
    @classmethod
    def _each_once(cls, allowed: dict[str, list[str]]) -> dict[str, list[str]]:
        if len({role.lower() for role in allowed}) < len(allowed):
            raise ValueError("a role is given twice, in upper and lower case: keep one")
        return allowed

    @model_validator(mode="after")
    def _roles_exist(self) -> Self:
        places: dict[Path_, str] = {("users", user): role for user, role in self.users.items()}
        if self.default:
            places["default",] = self.default
        known = {role.lower() for role in self.allowed}
        errors = [_no_role(path, role, self.allowed) for path, role in places.items() if role.lower() not in known]
        if errors:
            raise ValidationError.from_exception_data(type(self).__name__, errors)
        return self


class EmbeddingSettings(Section):
    """How many tools are shown, and what compares them with the message: their words, or the server at `base_url`."""

    top_k: Annotated[int, NotBoolean] = Field(default=5, ge=1, le=1000)
    model: str = Field(default="text-embedding-3-small", min_length=1)
    base_url: OptionalUrl = None
    api_key: OptionalSecret = None

    @model_validator(mode="after")
    def _has_a_server(self) -> Self:
        if self.base_url is None and self.model_fields_set & {"model", "api_key"}:
            raise ValueError("model and api_key are for a server: add base_url: https://api.openai.com/v1")
        return self


def _list_means_all(value: object) -> object:
    """Read a list of selectors as `all`: each chooses from what the one before it left."""
    return {"all": value} if isinstance(value, list) else value


class SelectorSettings(Section):
    """What chooses the tools that a model is shown: one kind of selector with its options.

    `always`: tools that are shown in any case. `on_error`: which tools are shown while a plugin fails.
    """

    keyword: dict[str, list[Annotated[str, Field(min_length=1)]]] | None = None
    whole_words: bool = False
    roles: RolesSettings | None = None
    embedding: EmbeddingSettings | None = None
    any_of: list[Selector] | None = Field(default=None, alias="any", min_length=1)
    all_of: list[Selector] | None = Field(default=None, alias="all", min_length=1)
    plugin: str | None = None
    options: dict[str, Any] = {}
    on_error: Literal["none", "all"] = "none"
    always: list[str] = []

    @model_validator(mode="after")
    def _of_one_kind(self) -> Self:
        if "embedding" in self.model_fields_set and self.embedding is None:
            raise ValueError("embedding has nothing below it: write `embedding: {}`")
        kinds = [kind for kind in _SELECTORS if getattr(self, kind) is not None]
        if len(kinds) != 1:
            raise ValueError("choose one of keyword, roles, embedding, any, all, plugin; write several as a list")
        for option, kind in _SELECTOR_OPTIONS.items():
            if option in self.model_fields_set and kind != kinds[0]:
                raise ValueError(f"{option} belongs to {kind}: remove it")
        if self.always and self.restricts:
            raise ValueError("always would give the tools of roles to everybody: name them in allowed, for each role")
        return self

    @property
    def restricts(self) -> bool:
        """Whether it decides who may use which tool, by roles in it or in a part of it."""
        return self.roles is not None or any(part.restricts for part in (*(self.any_of or ()), *(self.all_of or ())))


#: The kinds of selectors, by their fields; and the options that only one of them has.
_SELECTORS = ("keyword", "roles", "embedding", "any_of", "all_of", "plugin")


_SELECTOR_OPTIONS = {"whole_words": "keyword", "options": "plugin", "on_error": "plugin"}


Selector = Annotated[SelectorSettings, BeforeValidator(_list_means_all)]


class SourceSettings(Section):
    """What every source of tools has: a prefix for their names, the tools to take, those that ask first, and the
    longest time of a call, in seconds.
    """

    namespace: Annotated[str, Field(pattern=NAMESPACE)] | None = None
    include: list[str] | None = None
    exclude: list[str] = []
    confirm: Literal["hints", "always", "never"] | list[str] = "hints"
    timeout: Annotated[float | None, NotBoolean] = Field(default=None, gt=0, le=600)

    @field_validator("confirm", mode="before")
    @classmethod
    def _known_word(cls, confirm: object) -> object:
        if not isinstance(confirm, list) and confirm not in ("hints", "always", "never"):
            raise ValueError("unknown: write hints, always, never, or a list of patterns such as [delete_*]")
        return confirm


class McpSettings(Section):
    """An MCP server: a program to start, or a URL. Its environment and its headers are secrets."""

    command: list[str] | None = Field(default=None, min_length=1, repr=False)
    cwd: str | None = None
    env: dict[str, Secret] = {}
    url: Annotated[ServerUrl | None, Field(repr=False)] = None
    headers: dict[str, Secret] = {}

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError("a server is either a command, such as [npx, some-server], or a url: give one of them")
        if self.url is not None and (self.env or self.cwd):
            raise ValueError("env and cwd are for a command: a url takes headers")
        if self.command is not None and self.headers:
            raise ValueError("headers are for a url: a command takes env")
        return self


class McpSource(SourceSettings):
    """The tools of an MCP server."""

    mcp: McpSettings


class BasicSettings(Section):
    """User name and password for HTTP basic authentication."""

    user: str
    password: Secret


class AuthSettings(Section):
    """How calls authenticate: with one of bearer, header, query, cookie or basic."""

    bearer: OptionalSecret = None
    header: str | None = None
    query: str | None = None
    cookie: str | None = None
    basic: BasicSettings | None = None
    value: OptionalSecret = None

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        named = [name for name in ("bearer", "header", "query", "cookie", "basic") if getattr(self, name) is not None]
        if len(named) != 1:
            raise ValueError("calls are signed in one way: give one of bearer, header, query, cookie, basic")
        if (self.value is None) == (named[0] in ("header", "query", "cookie")):
            raise ValueError("header, query and cookie name where the key goes: the key itself is value: ${KEY}")
        return self


class OpenApiSource(SourceSettings):
    """The operations of an OpenAPI document: a file beside the configuration, or a URL."""

    openapi: str = Field(min_length=1)
    base_url: OptionalServerUrl = None
    auth: AuthSettings | None = None
    arguments: dict[str, str | int | float | bool] = {}


class ToolboxSource(SourceSettings):
    """Families of the tools that Sayso ships."""

    toolbox: list[str] = Field(min_length=1)
    folder: str | None = None
    hosts: list[str] = []


class ModuleSource(SourceSettings):
    """A module, file or folder whose tools get a prefix, or some of whose tools are left out."""

    module: str = Field(min_length=1)


def _kind_of_source(source: object) -> str | None:
    """Return the tag of a section. Tags are no possible keys, so that the paths of errors stay unambiguous."""
    if isinstance(source, str):
        return "a module"
    if isinstance(source, SourceSettings):
        return next(f"an {kind} section" for kind in SOURCE_KINDS if hasattr(source, kind))
    kinds = [kind for kind in SOURCE_KINDS if isinstance(source, dict) and kind in source]
    return f"an {kinds[0]} section" if len(kinds) == 1 else None


AnySource = Annotated[
    Annotated[str, Tag("a module")]
    | Annotated[McpSource, Tag("an mcp section")]
    | Annotated[OpenApiSource, Tag("an openapi section")]
    | Annotated[ToolboxSource, Tag("an toolbox section")]
    | Annotated[ModuleSource, Tag("an module section")],
    Discriminator(
        _kind_of_source,
        custom_error_type="source_kind",
        custom_error_message="write a module, a file, or a section with one of mcp, openapi, toolbox, module",
    ),
]


def _no_role(path: Path_, role: str, allowed: Mapping[str, Any]) -> InitErrorDetails:
    """Return the error of a user whose role is not described, with its path, so that its own line is reported."""
    error = PydanticCustomError("no_role", "names no role of allowed; known: {known}", {"known": ", ".join(allowed)})
    return InitErrorDetails(type=error, loc=path, input=role)
