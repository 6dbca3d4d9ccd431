"""OpenApiToolProvider: the operations of a document; an invalid one is an error with its fix, or is left out."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sayso.agent import Tool, ToolParameterError
from sayso.agent.toolsets.base import SourceError, ToolProviderProtocol
from sayso.agent.toolsets.openapi import OpenApiToolProvider
from sayso.agent.toolsets.openapi_document import parse
from tests.agent.toolsets.pets import PETS, provider, tools_of, with_operation


def test_cyclic_schema_is_cut_with_a_note(tmp_path: Path):
    """A pet has a parent, which is a pet: one level is shown, and the next accepts anything."""
    tool = tools_of(provider(tmp_path))["put_pets_id"]
    assert "(Nested Pet not shown in full.)" in tool.description
    assert tool.validate(
        {"id": "1", "name": "Rex", "parent": {"name": "Old", "parent": {"any": "thing"}}}
    )


@pytest.mark.parametrize(
    "schemas",
    [
        {"A": {"$ref": "#/components/schemas/B"}, "B": {"$ref": "#/components/schemas/A"}},
        {"A": {"allOf": [{"$ref": "#/components/schemas/A"}]}},
        {"A": {"type": "object", "additionalProperties": {"$ref": "#/components/schemas/A"}}},
        {"A": {"properties": {str(n): {"$ref": f"#/components/schemas/{c}"} for n in range(9) for c in "B"}},
         "B": {"properties": {str(n): {"$ref": f"#/components/schemas/{c}"} for n in range(9) for c in "C"}},
         "C": {"properties": {str(n): {"$ref": f"#/components/schemas/{c}"} for n in range(9) for c in "D"}},
         "D": {"properties": {str(n): {"$ref": f"#/components/schemas/{c}"} for n in range(9) for c in "A"}}},
    ],
)  # fmt: skip
def test_recursive_schemas_cause_no_endless_loop(tmp_path: Path, schemas: dict[str, Any]):
    """The references are mutual or multiply; the other operations are available."""
    body = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/A"}}}}
    document = {
        **with_operation("/pets", "post", requestBody=body),
        "components": {"schemas": {**PETS["components"]["schemas"], **schemas}},
    }
    assert "getPet" in tools_of(provider(tmp_path, document=document))


NAMED: dict[str, Any] = {"$ref": "#/components/schemas/Name"}


@pytest.mark.parametrize(
    ("schema", "fits", "breaks"),
    [
        ({"contains": NAMED}, [1, "Rex"], [1]),
        ({"propertyNames": NAMED}, {"Rex": 1}, {"": 1}),
        ({"if": {"type": "string"}, "then": NAMED}, "Rex", ""),
        ({"if": {"type": "integer"}, "else": NAMED}, 1, ""),
        (
            {"dependentSchemas": {"a": {"properties": {"b": NAMED}}}},
            {"a": 1, "b": "Rex"},
            {"a": 1, "b": ""},
        ),
        (
            {"properties": {"a": {}}, "unevaluatedProperties": NAMED},
            {"a": 1, "b": "Rex"},
            {"a": 1, "b": ""},
        ),
        ({"prefixItems": [{}], "unevaluatedItems": NAMED}, [1, "Rex"], [1, ""]),
    ],
)
def test_references_are_resolved_in_every_schema_position(tmp_path: Path, schema, fits, breaks):
    """JSON Schema allows them there since OpenAPI 3.1; the model's schema has no dangling reference."""
    body = {
        "content": {
            "application/json": {"schema": {"type": "object", "properties": {"it": schema}}}
        }
    }
    document = {
        **with_operation("/pets", "post", requestBody=body),
        "components": {
            "schemas": {**PETS["components"]["schemas"], "Name": {"type": "string", "minLength": 1}}
        },
    }
    tool = next(
        each
        for name, each in tools_of(provider(tmp_path, document=document)).items()
        if "it" in _of(each)
    )
    assert "$ref" not in json.dumps(tool.schema())
    assert tool.validate({"it": fits}) == {"it": fits}
    with pytest.raises(ToolParameterError, match="'it"):
        tool.validate({"it": breaks})


def _of(tool: Tool) -> Any:
    return tool.input_schema["properties"]


def test_openapi_3_0_schemas_become_json_schema(tmp_path: Path):
    """`nullable` and a boolean `exclusiveMinimum` are converted, and read-only properties are no arguments."""
    schema = tools_of(provider(tmp_path))["put_pets_id"].input_schema
    assert schema["properties"]["age"] == {"type": ["integer", "null"], "exclusiveMinimum": 0}
    tool = tools_of(provider(tmp_path))["put_pets_id"]
    assert tool.validate({"id": "1", "name": "Rex", "age": None})
    with pytest.raises(ToolParameterError):
        tool.validate({"id": "1", "name": "Rex", "age": 0})
    assert "id" in schema["required"]


def test_only_included_operations_are_tools(tmp_path: Path):
    """The patterns match their names in the document."""
    assert list(tools_of(provider(tmp_path, include=["*Pet*", "add*"], exclude=["delete*"]))) == [
        "getPet",
        "findPets",
        "add_pet",
    ]


def test_uncallable_operation_is_left_out_and_logged(tmp_path: Path, caplog):
    """The log has the reason, and the other operations are available."""
    document = json.loads(json.dumps(PETS))
    document["paths"]["/up"] = {
        "post": {"requestBody": {"required": True, "content": {"multipart/form-data": {}}}}
    }
    document["paths"]["/x/{y}"] = {"get": {}}
    document["paths"]["/ref"] = {"get": {"parameters": [{"$ref": "other.yaml#/x"}]}}
    assert "getPet" in tools_of(provider(tmp_path, document=document))
    said = [record.why for record in caplog.records]
    assert said == [
        "POST /up: its body is multipart/form-data without a fixed list of fields",
        "GET /x/{y}: nothing fills ['y'] in its path",
        "GET /ref: it refers to 'other.yaml#/x': bundle the document into one file",
    ]


def test_changed_definition_has_another_version(tmp_path: Path):
    """A call with an older preview never runs with a changed definition or address."""
    versions = {
        tools_of(provider(tmp_path, document=document, **options))["deletePet"].version
        for document in (PETS, with_operation("/pets/{id}", "delete", summary="Delete all."))
        for options in ({}, {"base_url": "https://other.example.com"})
    }
    assert len(versions) == 4


def test_layout_of_a_document_makes_no_other_version(tmp_path: Path):
    """A generator that writes the same document in another order ends no open question."""

    def version(required: list[str], summary: str) -> str:
        schema = {"type": "object", "properties": {"a": {}, "b": {}}, "required": required}
        body = {"required": True, "content": {"application/json": {"schema": schema}}}
        document = with_operation("/pets/{id}", "delete", summary=summary, requestBody=body)
        return tools_of(provider(tmp_path, document=document))["deletePet"].version

    assert version(["a", "b"], "Delete one.") == version(["b", "a"], "Delete\n  one.")
    assert version(["a", "b"], "Delete one.") != version(["a"], "Delete one.")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON: line 1, column 2"),
        ("a: [", "not YAML: line "),
        ("a: *x\n", "not YAML: line 1: an alias of something that does not end before it"),
        ("swagger: '2.0'", "no document of OpenAPI 3: it does not say `openapi: 3...`; convert it"),
        ("openapi: 4.0.0", "it says openapi: '4.0.0'; convert it to 3.0 or 3.1"),
        ("- 1", "no document of OpenAPI 3"),
        ("openapi: 3.1.0", "names no server that can be used: write its address as base_url"),
        (
            "openapi: 3.1.0\nservers: [{url: 'https://u:p@a.example.com'}]",
            "names no server that can be used",
        ),
        ("openapi: 3.1.0\nservers: [{url: /v1}]", "names no server that can be used"),
        ("[" * 100_000, "nest"),
    ],
)
def test_invalid_document_is_reported_with_the_fix(tmp_path: Path, text: str, said: str):
    """The error names the document."""
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(SourceError) as caught:
        asyncio.run(OpenApiToolProvider(file).list_tools())
    assert said in str(caught.value)
    assert "bad.yaml" in str(caught.value)


def test_yaml_is_read_as_openapi_defines_it(tmp_path: Path):
    """`no` and dates are strings."""
    (tmp_path / "a.yaml").write_text(
        "openapi: 3.1.0\npaths:\n  /a:\n    get:\n      parameters:\n"
        "        - {name: q, in: query, schema: {type: string, enum: [on, no, 2024-01-01]}}\n"
    )
    tools = tools_of(OpenApiToolProvider(tmp_path / "a.yaml", base_url="https://a.example.com"))
    assert list(tools["get_a"].schema()["parameters"]["properties"]["q"]["enum"]) == [
        "on",
        "no",
        "2024-01-01",
    ]


def test_provider_implements_the_protocol():
    """The protocol is that of the seed."""
    assert isinstance(OpenApiToolProvider("a.yaml"), ToolProviderProtocol)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [path, *(place for key, each in inner for place in _places(each, (*path, key)))]


@given(
    st.sampled_from(_places(PETS)[1:]),
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.just([])
    | st.just({})
    | st.just([5])
    | st.just({"$ref": "#/paths"})
    | st.just({"type": "nothing", "properties": 5, "required": 5, "enum": 5}),
)
@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_document_leads_to_tools_or_a_source_error(
    tmp_path: Path, place: tuple[Any, ...], value: Any
):
    """Any part of the document is replaced with any value."""
    document = json.loads(json.dumps(PETS))
    holder = document
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = value
    with contextlib.suppress(SourceError):
        assert all(
            isinstance(tool, Tool)
            for tool in tools_of(provider(tmp_path, document=document)).values()
        )


def test_number_with_thousands_of_digits_is_one_error(tmp_path: Path):
    """It holds for JSON and YAML."""
    for text in ('{"openapi": "3.0.0", "x": %s}', "openapi: 3.0.0\nx: %s\n"):
        (tmp_path / "big").write_text(text % ("9" * 5000))
        with pytest.raises(SourceError, match="holds a value that cannot be read"):
            asyncio.run(OpenApiToolProvider(tmp_path / "big").list_tools())


def test_too_many_operations_are_an_error_until_some_are_included(tmp_path: Path):
    """A silent cut would go unnoticed; an included operation is found among any number of others."""
    paths = {f"/p{number}": {"get": {"operationId": f"op{number}"}} for number in range(2_000)}
    document = {**PETS, "paths": paths}
    with pytest.raises(
        SourceError,
        match=r"more than 256 selected operations, .* choose those you need with include",
    ):
        tools_of(provider(tmp_path, document=document))
    assert list(tools_of(provider(tmp_path, document=document, include=["op1999"]))) == ["op1999"]
    assert len(tools_of(provider(tmp_path, document=document, include=["op19*"]))) == 111


def test_included_operation_that_does_not_exist_is_an_error(tmp_path: Path):
    """It is misspelled; the error lists what was left out, too. An operation that only cannot be called is no error."""
    document = json.loads(json.dumps(PETS))
    document["paths"]["/x/{y}"] = {"get": {"operationId": "broken"}}
    assert list(tools_of(provider(tmp_path, document=document, include=["getPet", "broken"]))) == [
        "getPet"
    ]
    reason = r"\['brokn'\]; left out: GET /x/\{y\}: nothing fills \['y'\] in its path"
    with pytest.raises(SourceError, match=reason):
        tools_of(provider(tmp_path, document=document, include=["getPet", "broken", "brokn"]))
    with pytest.raises(SourceError, match=r"operations that do not exist: \['getPets'\]$"):
        tools_of(provider(tmp_path, include=["getPets"]))


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("no", "no"), ("on", "on"), ("true", True), ("2020-01-01", "2020-01-01"), ("1", 1), ("'1'", "1"), ("1.5", 1.5),
        ("~", None), ("", None), ("''", ""), ("!!str 5", "5"), ("12:30", "12:30"), ("[a, {b: 1}]", ["a", {"b": 1}]),
        ("{<<: 1, c: 3}", {"<<": 1, "c": 3}), ("|-\n  x\n  y", "x\ny"), ("-5", -5), ("null", None),
        ("1e3", 1000.0), (".5", 0.5), ("0123", 123), ("1_000", "1_000"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("half", ["", '\nhalf: "\\ud800"'])
def test_yaml_values_follow_version_1_2(written: str, value: Any, half: str):
    """It holds for libyaml, and for PyYAML where libyaml cannot read an escape."""
    assert parse(f"openapi: 3.1.0\nx: {written}{half}", "x").root["x"] == value


def test_large_document_is_equal_in_yaml_and_json(tmp_path: Path):
    """It holds for thousands of values."""
    paths = {f"/p{number}/{{id}}": PETS["paths"]["/pets/{id}"] for number in range(300)}
    document = json.loads(json.dumps({**PETS, "paths": paths}))
    assert (
        parse(yaml.safe_dump(document, sort_keys=False, default_flow_style=None), "x").root
        == document
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [("a: &x [*x]", "an alias"), ("a: !!python/name:os x", "python/name"), ("a: 1\n---\nb: 2", "several documents"),
     ("a: !!set {b}", "the tag"), ("a: !!int '7'", "the tag"), ("? [a]\n: 1", "a key that is no scalar")],
)  # fmt: skip
def test_unsupported_yaml_is_refused(text: str, why: str):
    """The error names the line."""
    with pytest.raises(SourceError, match=rf"x: not YAML: line \d+: .*{why}"):
        parse(text, "x")


def test_anchors_of_yaml_are_read():
    """Own keys win over those of `<<`, which documents that are written by hand use for parameters and answers."""
    text = (
        "openapi: 3.1.0\na: &a {x: 1, y: 2}\nb: *a\nc: {<<: *a, y: 3}\nd: {<<: [{z: 0}, *a], x: 9}"
    )
    root = parse(text, "x").root
    assert (root["b"], root["c"], root["d"]) == (
        {"x": 1, "y": 2},
        {"x": 1, "y": 3},
        {"x": 9, "y": 2, "z": 0},
    )


def test_aliases_cannot_grow_without_bounds():
    """Ten lists of ten aliases each stand for ten billion values."""
    lists = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 11)]
    with pytest.raises(
        SourceError, match="line 8: aliases that stand for more than 1000000 values"
    ):
        parse("\n".join(["openapi: 3.1.0", "a0: &a0 1", *lists]), "x")


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_lone_surrogate_in_a_document_is_replaced(tmp_path: Path, form: str):
    """An escape can write it, but it cannot be sent, so the model sees a question mark."""
    path = r'{"/a": {"get": {"operationId": "go", "description": "half \ud800", "summary": "\ud83d\ude00"}}}'
    lines = f'"openapi": "3.1.0", "paths": {path}'
    (tmp_path / "a").write_text(f"{{{lines}}}" if form == "json" else f"# YAML\n{{{lines}}}")
    (tool,) = tools_of(
        OpenApiToolProvider(tmp_path / "a", base_url="https://a.example.com")
    ).values()
    assert "half ?" in tool.description
    tool.description.encode()


def test_approval_patterns_match_the_documents_own_names(tmp_path: Path, caplog):
    """The names may be invalid as tool names; a pattern without a match is logged."""
    pets = provider(tmp_path)
    asking = tools_of(pets, confirm=["add pet", "getPets"])
    assert [name for name, tool in asking.items() if tool.requires_approval] == ["add_pet"]
    assert [(record.source, record.patterns) for record in caplog.records] == [
        ("pets", ["getPets"])
    ]
