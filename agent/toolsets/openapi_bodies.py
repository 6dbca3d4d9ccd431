"""The body of an OpenAPI operation: its media type, and the arguments that it is made of.

A document may offer several media types for a body. They are tried in the order of `_preference`,
and the first that a request can express is used. If there is none, the operation cannot be used,
also where the body is optional: without its body the operation may mean something else.

The *essence* of a media type is the type without its parameters: `text/csv` of
`text/csv; charset=utf-8`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sayso.agent.tools.json_schema import types_of
from sayso.agent.toolsets.base import SourceError
from sayso.agent.toolsets.openapi_document import Document, Inliner, as_mapping

FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"
#: Methods that send something (RFC 9110, section 9.3).
_METHODS_WITH_BODIES = ("post", "put", "patch")
#: The range of all media types.
ANY_TYPE = "*/*"
#: Styles in which a field of a form can be written.
FIELD_STYLES = ("form", "spaceDelimited", "pipeDelimited", "deepObject")
#: Media types besides text/* whose content a model can write as text.
_TEXT_TYPES = (
    "application/xml",
    "application/yaml",
    "application/x-yaml",
    "application/graphql",
    "application/x-ndjson",
)
#: Keywords of a schema that is more than a list of properties.
_COMPOSING = frozenset(("allOf", "anyOf", "oneOf", "not", "patternProperties", "minProperties"))
#: Keywords that only inform, and restrict no value.
_INFORMING = frozenset(("description", "title", "default"))
#: What a model reads about an argument that is a file.
_FILE_HINT = "The name of a file that the user sent in this conversation."


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request carries one argument, and how the argument is written there."""

    #: The argument's name in the document.
    name: str
    #: One of path, query, header, cookie and body.
    where: str
    #: How lists and objects are written, as OpenAPI calls it: form, simple, deepObject and so on.
    #: "" for a field of a form without a style.
    style: str = ""
    #: Whether each item of a list is written by itself, as in `a=1&a=2`.
    explode: bool = False
    #: Whether the value is written as JSON.
    is_json: bool = False
    #: Whether the argument is the whole body, and not a field of it.
    is_whole_body: bool = False
    #: The media types that a file may have, which may end in `*`. The argument is then the name of
    #: a received file. Empty for all other arguments.
    file_types: tuple[str, ...] = ()
    #: Whether the argument is a list of names of received files.
    is_list: bool = False
    #: The media type of the value's part in a multipart body; "" for plain text.
    part_type: str = ""
    #: Whether a body must have this field. The body itself may be optional.
    is_needed: bool = False


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of an operation."""

    place: Place
    #: Its JSON Schema.
    schema: Any
    #: Whether each call must have it.
    is_required: bool


@dataclass(frozen=True, slots=True)
class Body:
    """The body that an operation sends."""

    #: Its media type; "" for an operation without a body.
    content_type: str = ""
    arguments: tuple[Argument, ...] = ()
    #: Whether each call must have a body.
    is_required: bool = False


def body_of(
    document: Document,
    inliner: Inliner,
    method: str,
    operation: Mapping[str, Any],
) -> Body:
    """Return the body of an operation. Raises SourceError if no request can express it.

    `method` is the HTTP method in lower case, and `inliner` the one of this operation.
    """
    if "requestBody" not in operation:
        return Body()
    definition = document.resolved(operation["requestBody"])
    content = as_mapping(definition.get("content"))
    if not content:
        raise SourceError("its body is of no type")

    is_required = definition.get("required") is True
    problems = []
    for content_type in sorted(content, key=_preference):
        reader = _BodyReader(
            document=document,
            inliner=inliner,
            content_type=str(content_type),
            media=as_mapping(content[content_type]),
            is_required=is_required,
            method=method,
        )
        try:
            return reader.read()
        except SourceError as exc:
            problems.append(str(exc))
    raise SourceError("; ".join(dict.fromkeys(problems)))


def _preference(content_type: Any) -> int:
    """Return the rank of a media type; the lowest is tried first."""
    essence = essence_of(str(content_type))
    if essence == "application/json":
        return 0
    # Models write a list of changes badly, and documents describe it as a plain object.
    if essence == "application/json-patch+json":
        return 2
    if is_json_type(essence):
        return 1
    if essence == FORM:
        return 3
    if essence == MULTIPART:
        return 4
    if _is_text_type(essence):
        return 5
    return 6


def essence_of(content_type: str) -> str:
    """Return a media type without its parameters, in lower case."""
    return content_type.partition(";")[0].strip().lower()


def is_json_type(content_type: str) -> bool:
    """Return whether a media type is JSON: `application/json`, `application/problem+json`."""
    essence = essence_of(content_type)
    if essence == "application/json":
        return True
    return essence.startswith("application/") and essence.endswith("+json")


def _is_text_type(essence: str) -> bool:
    """Return whether a model can write the content of a media type as text."""
    if essence.startswith("text/") or essence in _TEXT_TYPES:
        return True
    return essence.endswith(("+xml", "+yaml"))


@dataclass(frozen=True, slots=True)
class _BodyReader:
    """Reads one media type of a body. Its methods raise SourceError if that cannot be sent."""

    document: Document
    inliner: Inliner
    #: The media type with its parameters, as the document writes it.
    content_type: str
    #: What the document says about it: its schema and encoding.
    media: Mapping[str, Any]
    #: Whether the document says that the body must be sent.
    is_required: bool
    #: The HTTP method, in lower case.
    method: str

    def read(self) -> Body:
        """Return the body. Raises SourceError with the reason."""
        essence = essence_of(self.content_type)
        schema = self.inliner.inline(self.media.get("schema", {}))
        if "charset=" in self.content_type.lower() and "utf-8" not in self.content_type.lower():
            raise SourceError(f"its body is {self.content_type}: UTF-8 is supported")
        if "*" in essence:
            return self._of_any_type(essence, schema)

        # A body without fields takes no arguments. A multipart body without parts is not valid.
        if _is_empty_object(schema) and (is_json_type(essence) or essence == FORM):
            return Body(self.content_type, is_required=self.is_required)
        if is_json_type(essence):
            return self._json(self.content_type, schema)
        if essence in (FORM, MULTIPART):
            return self._form(schema, is_multipart=essence == MULTIPART)
        if is_text_schema(schema) and _is_text_type(essence) and not is_file(schema):
            return self._whole_body(self.content_type, schema)
        if (is_file(schema) or _is_untyped(schema)) and not essence.startswith("multipart/"):
            return self._file(essence, schema)
        raise self._unsupported()

    def _unsupported(self) -> SourceError:
        """Return the error for a media type that no request can express."""
        return SourceError(
            f"its body is {self.content_type}: JSON, forms, text and files are supported"
        )

    def _of_any_type(self, essence: str, schema: Any) -> Body:
        """Return a body whose media type is a range, such as `image/*`."""
        if is_file(schema) or _is_untyped(schema):
            return self._file(essence, schema)
        if essence in (ANY_TYPE, "text/*") and is_text_schema(schema):
            return self._whole_body("text/plain", schema)
        if essence in (ANY_TYPE, "application/*"):
            return self._json("application/json", schema)
        raise self._unsupported()

    def _whole_body(self, content_type: str, schema: Any) -> Body:
        """Return a body that is one argument, named `body`."""
        place = Place("body", "body", is_whole_body=True)
        argument = Argument(place, schema, is_required=self.is_required)
        return Body(content_type, (argument,), is_required=self.is_required)

    def _file(self, essence: str, schema: Any) -> Body:
        """Return a body that is one file. Its argument `file` is the name of that file."""
        place = Place("file", "body", is_whole_body=True, file_types=(essence,))
        name_schema = file_schema(as_mapping(schema), is_list=False)
        argument = Argument(place, name_schema, is_required=self.is_required)
        return Body(essence, (argument,), is_required=self.is_required)

    def _json(self, content_type: str, schema: Any) -> Body:
        """Return a body of JSON: an argument for each field, or one for the whole body."""
        properties = as_mapping(as_mapping(schema).get("properties"))
        files = [name for name, each in properties.items() if _may_be_file(each)]
        if files or _may_be_file(schema):
            where = f" {files[0]!r}" if files else ""
            raise SourceError(f"its body has the file{where} in JSON, which holds no files")
        if not _is_list_of_fields(schema):
            return self._whole_body(content_type, schema)
        arguments = []
        for name, each in properties.items():
            arguments.append(self._argument(schema, Place(name, "body"), each))
        return Body(content_type, tuple(arguments), is_required=self.is_required)

    def _argument(self, schema: Mapping[str, Any], place: Place, field: Any) -> Argument:
        """Return a field of a body as an argument.

        Many documents require fields of a body, but not the body itself: Twilio's never require
        that. Such a field counts as required if the method makes no sense without a body.
        """
        is_needed = place.name in schema.get("required", ())
        is_expected = self.is_required or self.method in _METHODS_WITH_BODIES
        return Argument(
            place=replace(place, is_needed=is_needed),
            schema=field,
            is_required=is_needed and is_expected,
        )

    def _form(self, schema: Any, *, is_multipart: bool) -> Body:
        """Return a form: an argument for each field, or one for a form whose fields are open."""
        merged = _merged(schema)
        encodings = as_mapping(self.media.get("encoding"))
        if not _is_list_of_fields(merged):
            if is_multipart or encodings or not _is_object(merged):
                raise SourceError(f"its body is {self.content_type} without a fixed list of fields")
            return self._whole_body(self.content_type, merged)
        arguments = []
        for name, each in merged["properties"].items():
            encoding = self.document.resolved(encodings.get(name, {}))
            place, field_schema = _field(name, each, encoding, is_multipart=is_multipart)
            arguments.append(self._argument(merged, place, field_schema))
        return Body(self.content_type, tuple(arguments), is_required=self.is_required)


def _field(
    name: str,
    schema: Any,
    encoding: Mapping[str, Any],
    *,
    is_multipart: bool,
) -> tuple[Place, Any]:
    """Return the place and the schema of one field of a form.

    `encoding` is what the document says about how the field is written; empty if nothing. Raises
    SourceError for a field that cannot be written.
    """
    listed_types = str(encoding.get("contentType") or "").split(",")
    types = tuple(essence_of(each) for each in listed_types if each.strip())
    all_headers = as_mapping(encoding.get("headers"))
    headers = [each for each in all_headers if str(each).lower() != "content-type"]
    if headers:
        problem = f"has the header {headers[0]!r}, which is not supported"
        raise SourceError(f"the part {name!r} of its body {problem}")

    # The first of these that applies decides how the field is written: a file, a style, JSON, text.
    value_schema = _without_null(schema)
    if _may_be_file(value_schema) or _is_file_by_encoding(value_schema, types):
        if not is_multipart:
            raise SourceError(f"its form has the file {name!r}, which only a multipart form holds")
        is_list = any(map(is_file_list, _alternatives(value_schema)))
        name_schema = file_schema(as_mapping(value_schema), is_list=is_list)
        place = Place(name, "body", file_types=types or (ANY_TYPE,), is_list=is_list)
        return place, name_schema

    # Any of these keywords says that the field is written like a parameter of the query.
    if not {"style", "explode", "allowReserved"}.isdisjoint(encoding):
        style = str(encoding.get("style", "form"))
        if style not in FIELD_STYLES:
            raise SourceError(f"its field {name!r} has the style {style!r}, which is not supported")
        explode = bool(encoding.get("explode", style == "form"))
        return Place(name, "body", style=style, explode=explode), schema

    # The document says nothing about how the field is written.
    if not types:
        return Place(name, "body"), schema
    json_type = next(filter(is_json_type, types), "")
    if json_type:
        return Place(name, "body", is_json=True, part_type=json_type), schema
    text_type = next(filter(_is_text_type, types), "")
    if text_type and is_text_schema(value_schema):
        return Place(name, "body", part_type=text_type), schema
    written = ", ".join(types)
    problem = f"its field {name!r} is written as {written}"
    raise SourceError(f"{problem}: JSON, text and files are supported")


def is_file(schema: Any) -> bool:
    """Return whether the value of a schema is a file: bytes that are not written in base64."""
    if not isinstance(schema, Mapping) or not _has_type(schema, "string"):
        return False
    if schema.get("format") == "binary":
        return True
    media_type = essence_of(str(schema.get("contentMediaType") or ""))
    if not media_type or "contentEncoding" in schema:
        return False
    return not (is_json_type(media_type) or _is_text_type(media_type))


def is_file_list(schema: Any) -> bool:
    """Return whether the value of a schema is a list of files."""
    is_list = isinstance(schema, Mapping) and schema.get("type") == "array"
    return is_list and is_file(schema.get("items"))


def _may_be_file(schema: Any) -> bool:
    """Return whether a value of a schema can be a file or a list of files.

    The schema may allow something else too, such as an address. A form writes one file and a list
    of one file in the same way.
    """
    return any(is_file(each) or is_file_list(each) for each in _alternatives(schema))


def _alternatives(schema: Any) -> list[Any]:
    """Return the alternatives in a schema; the schema alone if it has none."""
    keywords = as_mapping(schema)
    alternatives: list[Any] = []
    for key in ("anyOf", "oneOf"):
        if isinstance(keywords.get(key), list):
            alternatives += keywords[key]
    return alternatives or [schema]


def _is_file_by_encoding(schema: Any, types: Sequence[str]) -> bool:
    """Return whether a text or an untyped value is a file by the media types of its encoding."""
    is_text = isinstance(schema, Mapping) and schema.get("type") == "string"
    if not types or not (is_text or _is_untyped(schema)):
        return False
    return not any(is_json_type(each) or _is_text_type(each) for each in types)


def file_schema(schema: Mapping[str, Any], *, is_list: bool) -> dict[str, Any]:
    """Return the schema that a model sees of an argument that is a file: a text with its name."""
    description = " ".join(filter(None, [str(schema.get("description") or ""), _FILE_HINT]))
    if not is_list:
        return {"type": "string", "description": description}
    limits = {key: schema[key] for key in ("minItems", "maxItems") if key in schema}
    return {"type": "array", "items": {"type": "string"}, "description": description, **limits}


def is_text_schema(schema: Any) -> bool:
    """Return whether the value of a schema can be written as plain text."""
    if schema is True or _is_untyped(schema):
        return True
    if not isinstance(schema, Mapping):
        return False
    types = types_of(schema)
    if not types:
        return "enum" in schema
    return all(name in ("string", "integer", "number", "boolean", "null") for name in types)


def _is_untyped(schema: Any) -> bool:
    """Return whether a schema allows any value."""
    if schema is True:
        return True
    return isinstance(schema, Mapping) and not schema.keys() - _INFORMING


def _has_type(schema: Mapping[str, Any], type_name: str) -> bool:
    """Return whether a schema has this type, or this type and null, or states no type."""
    types = types_of({"type": type_name, **schema})
    return type_name in types and all(each in (type_name, "null") for each in types)


def _without_null(schema: Any) -> Any:
    """Return the only alternative of a schema besides null; any other schema unchanged."""
    if not isinstance(schema, Mapping):
        return schema
    for key in ("anyOf", "oneOf"):
        others = [each for each in schema.get(key) or () if as_mapping(each).get("type") != "null"]
        if len(others) == 1 and isinstance(others[0], Mapping):
            informing = {name: schema[name] for name in _INFORMING if name in schema}
            return {**others[0], **informing}
    return schema


def _is_object(schema: Any) -> bool:
    """Return whether the value of a schema can only be an object."""
    if not isinstance(schema, Mapping):
        return False
    if schema.get("type") == "object" or (schema.get("properties") and "type" not in schema):
        return True
    parts = [*(schema.get("anyOf") or ()), *(schema.get("oneOf") or ())]
    return bool(parts) and all(map(_is_object, parts))


def _is_list_of_fields(schema: Any) -> bool:
    """Return whether a schema is an object of named properties and nothing more."""
    if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
        return False
    if not schema.get("properties"):
        return False
    extra = schema.get("additionalProperties")
    is_open = extra is True or isinstance(extra, Mapping)
    is_complete = set(map(str, schema.get("required", ()))) <= set(schema["properties"])
    return is_complete and not is_open and not _COMPOSING & schema.keys()


def _is_empty_object(schema: Any) -> bool:
    """Return whether the value of a schema can only be an object without properties."""
    if not isinstance(schema, Mapping) or schema.get("type") != "object":
        return False
    if schema.get("properties") or _COMPOSING & schema.keys():
        return False
    return schema.get("additionalProperties") is False


def _merged(schema: Any) -> Any:
    """Return the schema of a form with the parts of its `allOf` merged into one list of properties.

    The schema is returned unchanged if that would mean something else.
    """
    if not isinstance(schema, Mapping) or not isinstance(schema.get("allOf"), list):
        return schema
    schema_itself = {key: value for key, value in schema.items() if key != "allOf"}
    parts = [schema_itself, *map(_merged, schema["allOf"])]
    known = {"type", "properties", "required", "additionalProperties", *_INFORMING}
    if any(not isinstance(part, Mapping) or part.keys() - known for part in parts):
        return schema
    properties: dict[str, Any] = {}
    required: list[str] = []
    for part in parts:
        # A closed part refuses the properties of the others, and a property that two parts describe
        # must fit both.
        is_closed = part.get("additionalProperties") not in (None, True)
        if is_closed or properties.keys() & as_mapping(part.get("properties")).keys():
            return schema
        properties |= as_mapping(part.get("properties"))
        required += part.get("required", ())
    return {"type": "object", "properties": properties, "required": list(dict.fromkeys(required))}
