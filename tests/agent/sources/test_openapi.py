"""OpenApiToolProvider against a real server: one origin, no secret in any text, no argument that leaves its place."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.sources import OpenApiToolProvider, ToolProviderProtocol, provided
from agent.sources.errors import SourceError
from agent.sources.openapi_auth import Auth
from agent.tools import Tool, ToolExecutionError, ToolParameterError, ToolTag, collect_artifacts
from agent.tools.errors import EffectUnknownError

SECRET = "s3cr3t+value/42"

#: Cyclic, with a path-level parameter, every place for a parameter, and the dialect of 3.0.
PETS: dict[str, Any] = {
    "openapi": "3.0.3",
    "info": {"title": "Pets", "version": "1"},
    "paths": {
        "/pets/{id}": {
            "parameters": [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}],
            "get": {"operationId": "getPet", "summary": "Find one pet."},
            "delete": {"operationId": "deletePet", "summary": "Delete a pet."},
            "put": {
                "summary": "Change a pet.",
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Pet"}}},
                },
            },
        },
        "/pets": {
            "get": {
                "operationId": "findPets",
                "parameters": [
                    {"name": "tags", "in": "query", "schema": {"type": "array", "items": {"type": "string"}}},
                    {"name": "ids", "in": "query", "explode": False, "schema": {"type": "array", "items": {}}},
                    {"name": "filter", "in": "query", "style": "deepObject", "schema": {"type": "object"}},
                    {"name": "page[size]", "in": "query", "schema": {"type": "integer", "nullable": True}},
                    {"name": "X-Trace", "in": "header", "schema": {"type": "string"}},
                    {"name": "Authorization", "in": "header", "schema": {"type": "string"}},
                    {"name": "theme", "in": "cookie", "schema": {"type": "string"}},
                ],
            },
            "post": {
                "operationId": "add pet",
                "requestBody": {
                    "content": {"application/x-www-form-urlencoded": {"schema": {"$ref": "#/components/schemas/New"}}}
                },
            },
        },
    },
    "components": {
        "schemas": {
            "Pet": {
                "type": "object",
                "required": ["name", "id"],
                "properties": {
                    "id": {"type": "integer", "readOnly": True},
                    "name": {"type": "string", "example": "Rex"},
                    "age": {"type": "integer", "minimum": 0, "exclusiveMinimum": True, "nullable": True},
                    "parent": {"$ref": "#/components/schemas/Pet"},
                    "friends": {"type": "array", "items": {"$ref": "#/components/schemas/Pet"}},
                },
            },
            "New": {"type": "object", "properties": {"name": {"type": "string"}, "tame": {"type": "boolean"}}},
        }
    },
}


def provider(tmp_path: Path, api: Any = None, document: Any = None, **options: Any) -> OpenApiToolProvider:
    """Of a document in a file, whose calls go to the test's server."""
    file = tmp_path / "pets.json"
    file.write_text(json.dumps(document or PETS))
    return OpenApiToolProvider(file, **{"base_url": api.url if api else "https://pets.example.com", **options})


def tools_of(pets: OpenApiToolProvider, **options: Any) -> dict[str, Tool]:
    """What it provides, by name."""
    return {tool.name: tool for tool in provided(pets, asyncio.run(pets.list_tools()), **options)}


def call(pets: OpenApiToolProvider, tool: str, /, **parameters: Any) -> Any:
    """What a tool returns."""
    return asyncio.run(tools_of(pets)[tool].ainvoke(parameters))


def refusal(pets: OpenApiToolProvider, tool: str, /, **parameters: Any) -> str:
    """What a tool says that fails."""
    with pytest.raises(ToolExecutionError) as caught:
        call(pets, tool, **parameters)
    return str(caught.value)


@pytest.mark.parametrize(
    "value", ["../admin", "a/../../admin", "%2e%2e/admin", "x?y=1", "x#y", "a b", "é", "//h", "\\"]
)
def test_path_argument_stays_one_piece_of_the_path(tmp_path: Path, api, value: str):
    """It is quoted: the server sees no other path, and no query."""
    seen = call(provider(tmp_path, api), "getPet", id=value)["path"]
    assert seen.startswith("/pets/")
    assert seen.count("/") == 2
    assert not set("?#") & set(seen)


@pytest.mark.parametrize("value", ["..", ".", ""])
def test_path_argument_that_quoting_does_not_help_is_refused(tmp_path: Path, api, value: str):
    """Dots and nothing mean another path, quoted or not; nothing is asked."""
    assert "which cannot stand in a path" in refusal(provider(tmp_path, api), "getPet", id=value)
    assert api.asked == []


@pytest.mark.parametrize(
    "where",
    ["http://169.254.169.254/", "https://evil.example.com/pets/1", "//evil.example.com/", "http://127.0.0.1:1/"],
)
def test_redirect_elsewhere_is_not_followed(tmp_path: Path, api, where: str):
    """Nobody but the pinned origin is asked, and the secret is not sent on."""
    api.answer("/pets/1", "", status=302, Location=where)
    said = refusal(provider(tmp_path, api, auth=Auth.bearer(SECRET)), "getPet", id="1")
    assert "redirects elsewhere, which is not followed" in said
    assert len(api.asked) == 1


def test_redirect_within_the_origin_is_followed_by_what_reads_only(tmp_path: Path, api):
    """A deletion is not sent a second time."""
    api.answer("/pets/1", "", status=307, Location="/pets/2")
    pets = provider(tmp_path, api)
    assert call(pets, "getPet", id="1")["path"] == "/pets/2"
    assert "whether 'deletePet' took effect is not known" in refusal(pets, "deletePet", id="1")
    assert [(method, path) for method, path, *_ in api.asked][2:] == [("DELETE", "/pets/1")]


def test_redirects_end(tmp_path: Path, api):
    """One that leads to itself too."""
    api.answer("/pets/1", "", status=302, Location="/pets/1")
    assert "redirects, which is not followed for ever" in refusal(provider(tmp_path, api), "getPet", id="1")


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "100.64.0.1"]
)
def test_private_address_is_refused_unless_base_url_names_the_host(tmp_path: Path, address: str):
    """Also where the name looks harmless: it is the address that counts, and what was looked at is connected to."""

    async def resolve(host: str, port: int) -> list[str]:
        return [address]

    document = {**PETS, "servers": [{"url": "https://pets.example.com/v1"}]}
    said = refusal(provider(tmp_path, document=document, base_url="", resolve=resolve), "getPet", id="1")
    assert "pets.example.com is not public: if you mean it, write it as base_url" in said


def test_document_may_not_send_its_calls_elsewhere(tmp_path: Path, api):
    """What was fetched from one origin is about that origin, unless base_url says otherwise."""
    document = {**PETS, "servers": [{"url": "https://elsewhere.example.com"}]}
    api.answer("/openapi.json", document)
    asked = OpenApiToolProvider(f"{api.url}/openapi.json", base_url=api.url)
    assert call(asked, "getPet", id="1")["path"] == "/pets/1"

    async def resolve(host: str, port: int) -> list[str]:
        return ["93.184.216.34"]

    pets = OpenApiToolProvider("https://pets.example.com/openapi.json", resolve=resolve)
    with pytest.raises(SourceError, match=r"sends its calls to 'elsewhere\.example\.com': if you mean it, write it as"):
        pets._read(_parsed(document))


def _parsed(document: Any) -> Any:
    from agent.sources.openapi_document import parse

    return parse(json.dumps(document), "it")


def test_document_on_a_private_host_needs_base_url(api):
    """Also to be fetched."""
    api.answer("/openapi.json", PETS)
    with pytest.raises(SourceError, match="is reached without https: if you mean it, write it as base_url"):
        asyncio.run(OpenApiToolProvider(f"{api.url}/openapi.json").list_tools())
    assert api.asked == []


def test_secret_goes_to_the_operations_and_not_with_the_request_for_the_document(api):
    """Whoever serves the document need not be who takes the calls."""
    api.answer("/openapi.json", PETS)
    pets = OpenApiToolProvider(f"{api.url}/openapi.json", base_url=api.url, auth=Auth.bearer(SECRET))
    call(pets, "getPet", id="1")
    assert [headers.get("authorization") for _, _, headers, _ in api.asked] == [None, f"Bearer {SECRET}"]


@pytest.mark.parametrize(
    ("auth", "seen"),
    [
        (Auth.bearer(SECRET), f"Bearer {SECRET}"),
        (Auth.basic("ana", SECRET), "Basic YW5hOnMzY3IzdCt2YWx1ZS80Mg=="),
        (Auth("header", "X-Key", SECRET), SECRET),
        (Auth("query", "key", SECRET), "key=s3cr3t%2Bvalue%2F42"),
        (Auth("cookie", "session", SECRET), "session=s3cr3t%2Bvalue%2F42"),
    ],
)
def test_secret_is_sent_and_never_told(tmp_path: Path, api, caplog, auth: Auth, seen: str):
    """Not in an error whose body repeats it, not in a log, not in a repr, not in an answer."""
    pets = provider(tmp_path, api, auth=auth)
    call(pets, "getPet", id="1")
    _, path, headers, _ = api.asked[0]
    assert seen in f"{path} {headers}"
    api.answer("/pets/2", f"no: {path} {headers}", status=401)
    said = refusal(pets, "getPet", id="2") + repr(auth) + caplog.text
    api.answer("/pets/3", {"seen": f"{path} {headers}"})
    for secret in (SECRET, "s3cr3t", auth.value.rpartition(" ")[2]):
        assert secret not in said
        assert secret not in str(call(pets, "getPet", id="3"))


def test_caller_cannot_sign_in_as_somebody_else(tmp_path: Path, api):
    """The document's own Authorization parameter is ignored, as the specification says; ours wins."""
    assert "Authorization" not in tools_of(provider(tmp_path))["findPets"].schema()["parameters"]["properties"]
    document = _with("/pets", "get", parameters=[{"name": "X-Key", "in": "header", "schema": {"type": "string"}}])
    call(provider(tmp_path, api, document, auth=Auth("header", "x-key", SECRET)), "findPets", **{"X-Key": "mine"})
    assert api.asked[0][2]["x-key"] == SECRET


def test_huge_answer_is_not_read(tmp_path: Path, api):
    """It ends at the cap, whatever the headers say."""
    api.answer("/pets/1", b"x" * 3_000_000)
    assert "answered with more than 100000 bytes" in refusal(
        provider(tmp_path, api, max_bytes=100_000), "getPet", id="1"
    )


def test_silent_server_is_given_up(tmp_path: Path):
    """After the time limit; what changes something may have taken effect."""
    import socket

    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        pets = provider(tmp_path, base_url=f"http://127.0.0.1:{silent.getsockname()[1]}", seconds=0.3)
        said = refusal(pets, "deletePet", id="1")
    assert "gave no answer within 0.3 s; whether 'deletePet' took effect is not known" in said


def test_server_that_is_not_there_was_not_asked(tmp_path: Path):
    """Nothing is unknown."""
    said = refusal(provider(tmp_path, base_url="http://127.0.0.1:1"), "deletePet", id="1")
    assert "127.0.0.1:1 cannot be reached (ConnectError): does it run? 'deletePet' was not sent" in said


def test_errors_of_the_api_are_readable(tmp_path: Path, api):
    """Status, operation and what it said, cut."""
    api.answer("/pets/1", {"message": "on fire " * 500}, status=500)
    said = refusal(provider(tmp_path, api), "getPet", id="1")
    assert 'pets answered 500 (Internal Server Error) to GET /pets/{id}: {"message": "on fire' in said
    assert len(said) < 700


@pytest.mark.parametrize("path", ["@evil.example.com/", ".evil.example.com/", ":1/", "x"])
def test_path_of_the_document_cannot_become_a_part_of_the_host(tmp_path: Path, path: str):
    """Its author may not be the one whom the operator trusts with a secret."""
    assert tools_of(provider(tmp_path, document=_only_path(path))) == {}


def test_path_of_the_document_cannot_leave_the_base(tmp_path: Path, api):
    """Neither by dots nor by a second slash."""
    base_url = f"{api.url}/v1"
    assert "leads out of" in refusal(provider(tmp_path, document=_only_path("/../admin"), base_url=base_url), "go")
    call(provider(tmp_path, document=_only_path("//evil.example.com/"), base_url=base_url), "go")
    assert [path for _, path, _, _ in api.asked] == ["/v1//evil.example.com/"]


def _only_path(path: str) -> dict[str, Any]:
    return {"openapi": "3.1.0", "paths": {path: {"get": {"operationId": "go"}}}}


@pytest.mark.parametrize(
    ("status", "error"), [(400, ToolExecutionError), (503, ToolExecutionError), (504, EffectUnknownError)]
)
def test_gateway_without_an_answer_leaves_the_effect_unknown(tmp_path: Path, api, status: int, error: type[Exception]):
    """A refusal did nothing; behind a gateway that waited in vain it may well be done."""
    api.answer("/pets/1", "", status=status)
    pets = provider(tmp_path, api)
    with pytest.raises(ToolExecutionError) as caught:
        call(pets, "deletePet", id="1")
    assert type(caught.value) is error
    with pytest.raises(ToolExecutionError) as caught:
        call(pets, "getPet", id="1")
    assert type(caught.value) is ToolExecutionError


def test_cycle_is_cut_and_said(tmp_path: Path):
    """A pet has a parent, which is a pet: shown once, then left open."""
    tool = tools_of(provider(tmp_path))["put_pets_id"]
    assert "(Nested Pet not shown in full.)" in tool.description
    assert tool.validate({"id": "1", "name": "Rex", "parent": {"name": "Old", "parent": {"any": "thing"}}})


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
def test_no_document_is_an_endless_loop(tmp_path: Path, schemas: dict[str, Any]):
    """Mutual references, and those that multiply; the other operations are there."""
    body = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/A"}}}}
    document = {
        **_with("/pets", "post", requestBody=body),
        "components": {"schemas": {**PETS["components"]["schemas"], **schemas}},
    }
    assert "getPet" in tools_of(provider(tmp_path, document=document))


def _with(path: str, method: str, **changes: Any) -> dict[str, Any]:
    """The document with one operation changed."""
    document: dict[str, Any] = json.loads(json.dumps(PETS))
    document["paths"][path][method].update(changes)
    return document


def test_dialect_of_3_0_becomes_json_schema(tmp_path: Path):
    """`nullable` and a boolean `exclusiveMinimum`; what only the server sets is no argument."""
    schema = tools_of(provider(tmp_path))["put_pets_id"].input_schema
    assert schema["properties"]["age"] == {"type": ["integer", "null"], "exclusiveMinimum": 0}
    tool = tools_of(provider(tmp_path))["put_pets_id"]
    assert tool.validate({"id": "1", "name": "Rex", "age": None})
    with pytest.raises(ToolParameterError):
        tool.validate({"id": "1", "name": "Rex", "age": 0})
    assert "id" in schema["required"]


def test_arguments_go_where_the_document_says(tmp_path: Path, api):
    """Path, query in its styles, header and cookie."""
    call(
        provider(tmp_path, api),
        "findPets",
        **{"tags": ["a", "b c"], "ids": [1, 2], "filter": {"age": 3}, "page_size_": 5, "X-Trace": "t", "theme": "d;k"},
    )
    _, path, headers, _ = api.asked[0]
    assert path == "/pets?tags=a&tags=b%20c&ids=1%2C2&filter%5Bage%5D=3&page%5Bsize%5D=5"
    assert (headers["x-trace"], headers["cookie"]) == ("t", "theme=d%3Bk")


def test_header_cannot_be_split(tmp_path: Path, api):
    """A line break in a header would be another header."""
    assert "a header holds printable ASCII only" in refusal(
        provider(tmp_path, api), "findPets", **{"X-Trace": "a\r\nX-Admin: 1"}
    )
    assert api.asked == []


def test_bodies_are_json_or_forms(tmp_path: Path, api):
    """Two parameters of one name are told apart; a form's values are encoded."""
    pets = provider(tmp_path, api)
    assert json.loads(call(pets, "put_pets_id", id="1", name="Rex", age=3)["body"]) == {"name": "Rex", "age": 3}
    assert call(pets, "add_pet", name="a&b", tame=True)["body"] == "name=a%26b&tame=true"
    assert [headers["content-type"] for _, _, headers, _ in api.asked] == [
        "application/json",
        "application/x-www-form-urlencoded",
    ]


def test_body_that_is_no_object_is_one_argument(tmp_path: Path, api):
    """A list, for example."""
    body = {
        "required": True,
        "content": {"application/json": {"schema": {"type": "array", "items": {"type": "integer"}}}},
    }
    assert (
        call(provider(tmp_path, api, _with("/pets", "post", requestBody=body)), "add_pet", body=[1, 2])["body"]
        == "[1, 2]"
    )


def test_what_changes_something_asks_first_unless_the_operator_says_otherwise(tmp_path: Path):
    """By the method: GET reads only."""
    pets = provider(tmp_path)
    tags = {name: ToolTag.DESTRUCTIVE in tool.metadata.tags for name, tool in tools_of(pets).items()}
    assert tags == {"getPet": False, "deletePet": True, "put_pets_id": True, "findPets": False, "add_pet": True}
    assert [name for name, tool in tools_of(pets).items() if tool.read_only] == ["getPet", "findPets"]
    assert not any(ToolTag.DESTRUCTIVE in tool.metadata.tags for tool in tools_of(pets, confirm="never").values())
    asking = tools_of(pets, confirm=["find*"], namespace="shop")
    assert [name for name, tool in asking.items() if tool.requires_approval] == ["shop-findPets"]


def test_only_chosen_operations_are_tools(tmp_path: Path):
    """By patterns over their names in the document."""
    assert list(tools_of(provider(tmp_path, include=["*Pet*", "add*"], exclude=["delete*"]))) == [
        "getPet",
        "findPets",
        "add_pet",
    ]


def test_what_cannot_be_called_is_left_out_and_said(tmp_path: Path, caplog):
    """With its reason; the rest is there."""
    document = json.loads(json.dumps(PETS))
    document["paths"]["/up"] = {"post": {"requestBody": {"required": True, "content": {"multipart/form-data": {}}}}}
    document["paths"]["/x/{y}"] = {"get": {}}
    document["paths"]["/ref"] = {"get": {"parameters": [{"$ref": "other.yaml#/x"}]}}
    assert "getPet" in tools_of(provider(tmp_path, document=document))
    said = [record.why for record in caplog.records]
    assert said == [
        "POST /up: its body is multipart/form-data: JSON, forms and text are supported",
        "GET /x/{y}: nothing fills ['y'] in its path",
        "GET /ref: it refers to 'other.yaml#/x': bundle the document into one file",
    ]


def test_files_reach_the_user(tmp_path: Path, api):
    """The name that the server gives loses its path."""
    api.answer(
        "/pets/1", b"%PDF", Content_Disposition='attachment; filename="../../pet.pdf"', Content_Type="application/pdf"
    )
    with collect_artifacts() as files:
        told = call(provider(tmp_path, api), "getPet", id="1")
    assert told == "(handed to the user: pet.pdf, application/pdf, 4 bytes)"
    assert [(file.filename, file.data) for file in files] == [("pet.pdf", b"%PDF")]


def test_answers_are_values_text_or_nothing(tmp_path: Path, api):
    """JSON by its type, text as it is, no content as done."""
    api.answer("/pets/1", "plain")
    api.answer("/pets/2", b"", status=204)
    pets = provider(tmp_path, api)
    assert (call(pets, "getPet", id="1"), call(pets, "getPet", id="2")) == ("plain", None)


def test_another_definition_is_another_version(tmp_path: Path):
    """What was previewed before never runs as something else: also at another address."""
    versions = {
        tools_of(provider(tmp_path, document=document, **options))["deletePet"].version
        for document in (PETS, _with("/pets/{id}", "delete", summary="Delete all."))
        for options in ({}, {"base_url": "https://other.example.com"})
    }
    assert len(versions) == 4


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON: line 1, column 2"),
        ("a: [", "not YAML: line 1: "),
        ("a: &x [1]\nb: *x\n", "an alias: write it out"),
        ("swagger: '2.0'", "no document of OpenAPI 3: it does not say `openapi: 3...`; convert it"),
        ("openapi: 4.0.0", "it says openapi: '4.0.0'; convert it to 3.0 or 3.1"),
        ("- 1", "no document of OpenAPI 3"),
        ("openapi: 3.1.0", "names no server that can be used: write its address as base_url"),
        ("openapi: 3.1.0\nservers: [{url: 'https://u:p@a.example.com'}]", "names no server that can be used"),
        ("openapi: 3.1.0\nservers: [{url: /v1}]", "names no server that can be used"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_bad_document_is_told_with_the_cure(tmp_path: Path, text: str, said: str):
    """And which document it is."""
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(SourceError) as caught:
        asyncio.run(OpenApiToolProvider(file).list_tools())
    assert said in str(caught.value)
    assert "bad.yaml" in str(caught.value)


def test_yaml_is_read_as_openapi_means_it(tmp_path: Path):
    """`no` and dates are text."""
    (tmp_path / "a.yaml").write_text(
        "openapi: 3.1.0\npaths:\n  /a:\n    get:\n      parameters:\n"
        "        - {name: q, in: query, schema: {type: string, enum: [on, no, 2024-01-01]}}\n"
    )
    tools = tools_of(OpenApiToolProvider(tmp_path / "a.yaml", base_url="https://a.example.com"))
    assert list(tools["get_a"].schema()["parameters"]["properties"]["q"]["enum"]) == ["on", "no", "2024-01-01"]


def test_provider_keeps_the_protocol():
    """As the seed has it."""
    assert isinstance(OpenApiToolProvider("a.yaml"), ToolProviderProtocol)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
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
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_document_breaks_the_reader(tmp_path: Path, place: tuple[Any, ...], value: Any):
    """Whatever stands in the place of any part of it: a SourceError, or tools."""
    document = json.loads(json.dumps(PETS))
    holder = document
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = value
    with contextlib.suppress(SourceError):
        assert all(isinstance(tool, Tool) for tool in tools_of(provider(tmp_path, document=document)).values())


@pytest.mark.parametrize("text", ["SEC\\\\/RET", "SEC\\u002fRET"])
def test_secret_in_other_characters_is_hidden_too(tmp_path: Path, api, text: str):
    """JSON may write a slash in three ways."""
    api.answer(
        "/pets/1",
        f'{{"you sent": "{text}", "a": ["x{text}"]}}'.encode().replace(b"\\\\", b"\\"),
        Content_Type="application/json",
    )
    told = call(provider(tmp_path, api, auth=Auth.bearer("SEC/RET")), "getPet", id="1")
    assert told == {"you sent": "[hidden]", "a": ["x[hidden]"]}


def test_answer_nested_without_end_is_text(tmp_path: Path, api):
    """No parser's limit leaves the tool."""
    api.answer("/pets/1", b"[" * 100_000, Content_Type="application/json")
    assert call(provider(tmp_path, api), "getPet", id="1").startswith("[[[")


@pytest.mark.parametrize("value", ["\ud800", float("nan"), float("inf")])
def test_what_cannot_be_written_down_is_an_outcome(tmp_path: Path, api, value: Any):
    """Half a character has no bytes, and JSON knows no infinity."""
    outcome = asyncio.run(provider(tmp_path, api).execute_tool("getPet", {"id": value}))
    assert "'id' cannot be sent" in (outcome.error or "")
    assert api.asked == []


def test_path_without_its_argument_is_not_asked(tmp_path: Path, api):
    """Null is no piece of a path."""
    outcome = asyncio.run(provider(tmp_path, api).execute_tool("getPet", {"id": None}))
    assert "['id'] must be given" in (outcome.error or "")
    assert api.asked == []


@pytest.mark.parametrize(
    ("where", "name"), [("header", "Expect"), ("header", "Proxy-Authorization"), ("header", "X Y"), ("cookie", "a; b")]
)
def test_parameter_that_would_steer_the_request_is_none(tmp_path: Path, where: str, name: str):
    """Headers of HTTP's own, and names that would end what they name."""
    document = _with("/pets", "get", parameters=[{"name": name, "in": where, "schema": {}}])
    assert not tools_of(provider(tmp_path, document=document))["findPets"].parameters


@pytest.mark.parametrize("url", ["https://[::1", "https://h:99999", "https://", "https://h:x/"])
def test_server_that_is_no_address_is_one_error(tmp_path: Path, url: str):
    """No parser's words leave the provider."""
    with pytest.raises(SourceError, match="names no server that can be used"):
        tools_of(provider(tmp_path, base_url="", document={**PETS, "servers": [{"url": url}]}))


def test_number_of_thousands_of_digits_is_one_error(tmp_path: Path):
    """In a document that is JSON or YAML."""
    for text in ('{"openapi": "3.0.0", "x": %s}', "openapi: 3.0.0\nx: %s\n"):
        (tmp_path / "big").write_text(text % ("9" * 5000))
        with pytest.raises(SourceError, match="holds a value that cannot be read"):
            asyncio.run(OpenApiToolProvider(tmp_path / "big").list_tools())


def test_no_more_operations_are_built_than_are_taken(tmp_path: Path, caplog):
    """Each of a hundred thousand might be of any size."""
    paths = {f"/p{number}": {"get": {"operationId": f"op{number}"}} for number in range(2_000)}
    document = {**PETS, "paths": paths}
    assert len(tools_of(provider(tmp_path, document=document))) == 256
    assert list(tools_of(provider(tmp_path, document=document, include=["op1999"]))) == ["op1999"]
