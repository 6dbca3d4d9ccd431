"""OpenAPI: an operation is offered only if a request can be written as its document says.

Others are named.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest

from sayso.agent.toolsets.openapi import OpenApiToolProvider
from sayso.agent.toolsets.openapi_request import Auth
from tests.agent.toolsets.pets import PETS, call, provider, refusal, tools_of, with_operation

TEXT = {"type": "string"}


def left_out(tmp_path: Path, path: str, method: str, **changes: Any) -> str:
    """Return why an operation with these changes is left out, "" if it is offered."""
    pets = provider(tmp_path, document=with_operation(path, method, **changes))
    tools_of(pets)
    name = {"put": "put_pets_id", "get": "findPets", "delete": "deletePet", "post": "add pet"}[
        method
    ]
    return pets.left_out.get(name, "").partition(": ")[2]


def body(kind: str, schema: Any, *, required: bool = False, **media: Any) -> dict[str, Any]:
    """Return a request body of one media type."""
    return {"required": required, "content": {kind: {"schema": schema, **media}}}


@pytest.mark.parametrize(
    ("request_body", "why"),
    [
        (body("application/xml", {"type": "object"}), "its body is application/xml: JSON, forms, text and files are"),
        (body("multipart/related", {}), "its body is multipart/related: "),
        (body("text/plain", {"type": "object"}), "its body is text/plain: "),
        (body("text/plain; charset=iso-8859-1", TEXT), "its body is text/plain; charset=iso-8859-1: UTF-8"),
        (body("application/*+json", {"type": "object"}), "its body is application/*+json: "),
        (body("application/x-www-form-urlencoded", TEXT), "its body is application/x-www-form-urlencoded without"),
        (body("multipart/form-data", {"oneOf": [{"type": "object"}]}), "its body is multipart/form-data without a"),
        (body("application/json", {"properties": {"photo": {**TEXT, "format": "binary"}}}), "the file 'photo' in JSON"),
        (
            body("application/x-www-form-urlencoded", {"properties": {"photo": {**TEXT, "format": "binary"}}}),
            "its form has the file 'photo', which only a multipart form holds",
        ),
        (
            body("multipart/form-data", {"properties": {"a": TEXT}}, encoding={"a": {"headers": {"X-Hash": {}}}}),
            "the part 'a' of its body has the header 'X-Hash'",
        ),
        (
            body("multipart/form-data", {"properties": {"a": TEXT}}, encoding={"a": {"contentType": "image/png"}}),
            "",
        ),
        (
            body("multipart/form-data", {"properties": {"a": {"type": "object"}}},
                 encoding={"a": {"contentType": "application/xml"}}),
            "its field 'a' is written as application/xml",
        ),
        ({"content": {}}, "its body is of no type"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("required", [False, True])
def test_operation_with_a_body_that_cannot_be_sent_is_left_out(
    tmp_path: Path, request_body: dict[str, Any], why: str, required: bool
):
    """Also an optional body: an empty PUT may mean something else, such as to clear everything."""
    reason = left_out(
        tmp_path, "/pets/{id}", "put", requestBody={**request_body, "required": required}
    )
    assert why in reason
    assert bool(why) == bool(reason)


@pytest.mark.parametrize(
    ("parameter", "why"),
    [
        (
            {"name": "a", "in": "query", "style": "matrix"},
            "its parameter 'a' has the style 'matrix'",
        ),
        ({"name": "a", "in": "body"}, "its parameter 'a' is in 'body'"),
        ({"name": "a b", "in": "cookie"}, "its parameter 'a b' is no valid name of a cookie"),
        (
            {"name": "a", "in": "cookie", "schema": {"type": "array"}},
            "its cookie 'a' is a list or an object",
        ),
        (
            {"name": "a", "in": "query", "content": {"application/xml": {}}},
            "its parameter 'a' is written as applic",
        ),
        ({"name": "a", "in": "query", "schema": {"$ref": "x.yaml#/A"}}, "it refers to 'x.yaml#/A'"),
    ],
)
def test_parameter_that_cannot_be_sent_is_named(
    tmp_path: Path,
    parameter: dict[str, Any],
    why: str,
):
    """Reading goes on without an optional one.

    A change does not: without its filter it may change more.
    """
    pets = provider(tmp_path, document=with_operation("/pets", "get", parameters=[parameter]))
    assert "findPets" in tools_of(pets)
    assert why in pets.missing["findPets"]
    assert why in left_out(tmp_path, "/pets", "get", parameters=[{**parameter, "required": True}])
    assert why in left_out(tmp_path, "/pets/{id}", "delete", parameters=[parameter])


def test_required_header_of_the_connection_makes_an_operation_unusable(tmp_path: Path):
    """The client writes it itself.

    An optional one is only named, and `Accept` is ignored as the specification says.
    """
    headers = [{"name": name, "in": "header", "schema": TEXT} for name in ("Host", "Accept")]
    assert left_out(tmp_path, "/pets/{id}", "delete", parameters=headers) == ""
    required = [{**header, "required": True} for header in headers]
    reason = left_out(tmp_path, "/pets/{id}", "delete", parameters=required)
    assert reason == "its header 'Host' belongs to the connection, and the client alone writes it"


@pytest.mark.parametrize(
    ("scheme", "why"),
    [
        ({"type": "mutualTLS"}, "it needs a certificate of the client"),
        ({"type": "http", "scheme": "Digest"}, "it needs HTTP authentication of the kind 'digest'"),
        ({"type": "http", "scheme": "bearer"}, ""),
        ({"type": "oauth2"}, ""),
        ({"type": "apiKey", "in": "cookie", "name": "sid"}, ""),
    ],
)
def test_operation_that_cannot_be_signed_is_left_out(
    tmp_path: Path,
    scheme: dict[str, Any],
    why: str,
):
    """One alternative that can be signed is enough."""
    components = {
        **PETS["components"],
        "securitySchemes": {"own": scheme, "key": {"type": "apiKey"}},
    }
    for security, reason in (([{"own": []}], why), ([{"own": []}, {"key": []}], "")):
        document = {
            **with_operation("/pets/{id}", "delete", security=security),
            "components": components,
        }
        pets = provider(tmp_path, document=document)
        assert ("deletePet" in tools_of(pets)) == (reason == "")
        assert reason in pets.left_out.get("deletePet", "")


def test_operation_that_needs_two_keys_is_offered_with_both(tmp_path: Path, api):
    """With one of them the API would refuse each call."""
    document = with_operation("/pets/{id}", "delete", security=[{"key": [], "app": []}])
    key = Auth("header", "X-Key", "k1234")
    app = Auth("query", "app", "a1234")
    alone = provider(tmp_path, api, document, auth=key)
    assert "deletePet" not in tools_of(alone)
    assert (
        "it needs 'key' and 'app' at once: name the others than `auth` under"
        in alone.left_out["deletePet"]
    )
    call(provider(tmp_path, api, document, auth=[key, app]), "deletePet", id="1")
    _, path, headers, _ = api.asked[-1]
    assert (path, headers["x-key"]) == ("/pets/1?app=a1234", "k1234")


@pytest.mark.parametrize(
    ("server", "base_url", "offered"),
    [
        ("https://uploads.example.com", "", False),
        ("https://uploads.example.com", "https://uploads.example.com/", True),
        ("https://pets.example.com/v1/", "", True),
        ("https://pets.example.com/v1", "https://sandbox.example.com", True),
        ("https://pets.example.com/v2", "", False),
        ("https://{region}.example.com", "", False),
    ],
)
def test_operation_of_another_server_is_left_out(
    tmp_path: Path,
    server: str,
    base_url: str,
    offered: bool,
):
    """Its own server counts, not the first one of the document, which `base_url` replaces."""
    document = with_operation(
        "/pets/{id}", "delete", servers=[{"url": server, "variables": {"region": {}}}]
    )
    document["servers"] = [
        {"url": "https://pets.example.com/{version}", "variables": {"version": {"default": "v1"}}}
    ]
    pets = provider(tmp_path, document=document, base_url=base_url)
    assert ("deletePet" in tools_of(pets)) == offered
    assert ("server" in pets.left_out.get("deletePet", "")) == (not offered)


@pytest.mark.parametrize("server", ["/", "/v1"])
def test_operation_that_repeats_the_relative_server_of_a_file_is_offered(
    tmp_path: Path, server: str
):
    """`base_url` replaces this server, though a file has no URL to which it is relative."""
    document = with_operation("/pets/{id}", "delete", servers=[{"url": server}])
    document["servers"] = [{"url": server}]
    pets = provider(tmp_path, document=document, base_url="https://pets.example.com")
    assert "deletePet" in tools_of(pets)


def test_methods_that_are_not_called_are_named(tmp_path: Path):
    """TRACE would repeat the secrets. Callbacks and webhooks are calls of the API, not to it."""
    document = json.loads(json.dumps(PETS))
    document["paths"]["/pets"] |= {"trace": {}, "query": {"operationId": "search"}}
    document["paths"]["/pets"]["get"]["callbacks"] = {
        "done": {"{$request.body#/url}": {"post": {}}}
    }
    document["webhooks"] = {"born": {"post": {"operationId": "born"}}}
    pets = provider(tmp_path, document=document)
    assert {"findPets"} <= tools_of(pets).keys()
    assert pets.left_out == {
        "trace_pets": "TRACE /pets: this method is not supported",
        "search": "QUERY /pets: this method is not supported",
    }


def test_extension_among_the_paths_is_no_operation(tmp_path: Path):
    """Generators write settings there, and nothing is missing without them."""
    document = {**PETS, "paths": {**PETS["paths"], "x-root": "/api"}}
    pets = provider(tmp_path, document=document)
    tools_of(pets)
    assert pets.left_out == {}


def test_path_parameter_without_a_place_is_not_lost(tmp_path: Path):
    """The argument would be dropped without a word."""
    parameters = [{"name": "shop", "in": "path", "required": True, "schema": TEXT}]
    assert (
        left_out(tmp_path, "/pets/{id}", "delete", parameters=parameters)
        == "its path has no place for ['shop']"
    )


def changed(
    tmp_path: Path,
    api: Any,
    request_body: dict[str, Any],
    **arguments: Any,
) -> tuple[str, str]:
    """Return content type and body of a PUT with these arguments."""
    pets = provider(tmp_path, api, with_operation("/pets/{id}", "put", requestBody=request_body))
    call(pets, "put_pets_id", id="1", **arguments)
    _, _, headers, data = api.asked[-1]
    return headers["content-type"], data.decode()


def test_json_is_preferred_to_other_types_of_a_body(tmp_path: Path, api):
    """Types that cannot be sent beside it hide no operation."""
    kinds = ("application/xml", "application/merge-patch+json", "application/json")
    request_body = {"content": {kind: {"schema": {"properties": {"a": {}}}} for kind in kinds}}
    assert changed(tmp_path, api, request_body, a=1) == ("application/json", '{"a": 1}')


def test_required_body_without_fields_is_an_empty_object(tmp_path: Path, api):
    """No body at all would be another request."""
    request_body = body("application/json", {"properties": {"a": TEXT}}, required=True)
    assert changed(tmp_path, api, request_body) == ("application/json", "{}")


def test_required_fields_of_an_optional_body_are_never_left_out(tmp_path: Path, api):
    """A change needs them, as Twilio's documents mean it; a deletion has all of them or no body."""
    fields = body(
        "application/json", {"required": ["why"], "properties": {"why": TEXT, "note": TEXT}}
    )
    changing = provider(tmp_path, document=with_operation("/pets/{id}", "put", requestBody=fields))
    assert tools_of(changing)["put_pets_id"].schema()["parameters"]["required"] == ["id", "why"]
    document = with_operation("/pets/{id}", "delete", requestBody=fields)
    assert call(provider(tmp_path, api, document), "deletePet", id="1")["body"] == ""
    assert "['why'] must be given" in refusal(
        provider(tmp_path, api, document), "deletePet", id="1", note="x"
    )
    assert len(api.asked) == 1


@pytest.mark.parametrize("kind", ["*/*", "application/*"])
def test_body_of_any_type_is_json_where_its_schema_is(tmp_path: Path, api, kind: str):
    """A media type with a star is never sent."""
    request_body = body(kind, {"properties": {"a": {"type": "integer"}}})
    assert changed(tmp_path, api, request_body, a=1) == ("application/json", '{"a": 1}')


def test_body_without_any_field_takes_no_argument(tmp_path: Path, api):
    """Stripe's document has such a body for each GET.

    A model would be asked for an empty object.
    """
    empty = {"type": "object", "properties": {}, "additionalProperties": False}
    document = with_operation("/pets", "get", requestBody=body(FORM, empty), parameters=[])
    pets = provider(tmp_path, api, document)
    assert tools_of(pets)["findPets"].parameters == ()
    call(pets, "findPets")
    assert (api.asked[-1][3], "content-type" in api.asked[-1][2]) == (b"", False)


def test_free_fields_of_a_body_can_be_given(tmp_path: Path, api):
    """Where the schema allows any other property, or requires one without describing it, the body is one argument."""
    for more in ({"additionalProperties": True}, {"required": ["b"]}):
        request_body = body("application/json", {"type": "object", "properties": {"a": {}}, **more})
        assert changed(tmp_path, api, request_body, body={"b": 2})[1] == '{"b": 2}'


FORM = "application/x-www-form-urlencoded"
FIELDS = {
    "properties": {"items": {"type": "array", "items": {}}, "meta": {"type": "object"}, "n": {}}
}


@pytest.mark.parametrize(
    ("encoding", "sent"),
    [
        ({}, {("items", "a"), ("items", '{"b": 1}'), ("meta", '{"k": {"l": true}}')}),
        (
            {"items": {"style": "deepObject"}, "meta": {"style": "deepObject"}},
            {("items[]", "a"), ("items[1][b]", "1"), ("meta[k][l]", "true")},
        ),
        (
            {"items": {"contentType": "application/json"}},
            {("items", '["a", {"b": 1}]'), ("meta", '{"k": {"l": true}}')},
        ),
        (
            {"items": {"style": "pipeDelimited"}},
            {("items", 'a|{"b": 1}'), ("meta", '{"k": {"l": true}}')},
        ),
    ],
)
def test_fields_of_a_form_are_written_as_their_encoding_says(
    tmp_path: Path,
    api,
    encoding: Any,
    sent: set[Any],
):
    """Stripe's forms are objects in brackets (`deepObject`).

    Without an encoding, objects are JSON.
    """
    arguments = {"items": ["a", {"b": 1}], "meta": {"k": {"l": True}}}
    kind, data = changed(tmp_path, api, body(FORM, FIELDS, encoding=encoding), **arguments)
    assert (kind, set(parse_qsl(data))) == (FORM, sent)


def test_deep_object_in_a_query_holds_lists_and_objects(tmp_path: Path, api):
    """`expand[]=a` is what servers with such parameters read."""
    pets = provider(tmp_path, api)
    call(pets, "findPets", filter={"expand": ["a", "b"], "born": {"gt": 3}, "none": None})
    assert (
        api.asked[-1][1]
        == "/pets?filter%5Bexpand%5D%5B%5D=a&filter%5Bexpand%5D%5B%5D=b&filter%5Bborn%5D%5Bgt%5D=3"
    )


def test_form_that_is_one_argument_takes_an_object_only(tmp_path: Path, api):
    """Any other value would need a field that the document does not name."""
    schema = {"type": "object", "additionalProperties": True}
    document = with_operation("/pets/{id}", "put", requestBody=body(FORM, schema))
    assert (
        call(provider(tmp_path, api, document), "put_pets_id", id="1", body={"a": 1})["body"]
        == "a=1"
    )
    assert "a form is an object of fields" in refusal_of(provider(tmp_path, api, document), [1])


def refusal_of(pets: OpenApiToolProvider, value: Any) -> str:
    """Return the error of a call with this body, which no schema has checked."""
    asyncio.run(pets.list_tools())
    return asyncio.run(pets.execute_tool("put_pets_id", {"id": "1", "body": value})).error or ""


def test_read_only_property_behind_a_reference_is_not_an_argument(tmp_path: Path):
    """Only the server sets it."""
    document = with_operation("/pets/{id}", "put")
    document["components"]["schemas"]["Pet"]["properties"]["id"] = {
        "$ref": "#/components/schemas/Id"
    }
    document["components"]["schemas"]["Id"] = {"type": "integer", "readOnly": True}
    parameters = tools_of(provider(tmp_path, document=document))["put_pets_id"].parameters
    assert [each.name for each in parameters] == ["id", "name", "age", "parent", "friends"]
    assert next(each for each in parameters if each.name == "id").type is not int


@pytest.mark.parametrize(
    ("version", "id_schema", "pet"),
    [
        ("3.1.0", {"$ref": "#/components/schemas/Id", "readOnly": True}, {}),
        ("3.0.3", {"allOf": [{"$ref": "#/components/schemas/Id"}, {"readOnly": True}]}, {}),
        ("3.0.3", {"type": "integer", "readOnly": True}, {"allOf": [{"required": ["id", "name"]}]}),
    ],
)
def test_read_only_property_is_no_argument_however_it_is_written(
    tmp_path: Path, api, version: str, id_schema: Any, pet: Any
):
    """Beside a reference, in a part, or required by another part: only the server sets it."""
    document = json.loads(json.dumps(PETS))
    schema = {
        "type": "object",
        "required": ["id"],
        "properties": {"id": id_schema, "name": {"type": "string"}},
        **pet,
    }
    schemas = {"Pet": schema, "Id": {"type": "integer"}}
    document.update(
        openapi=version, components={"schemas": {**document["components"]["schemas"], **schemas}}
    )
    arguments = {"body": {"name": "Rex"}} if pet else {"name": "Rex"}
    call(provider(tmp_path, api, document), "put_pets_id", id="1", **arguments)
    assert json.loads(api.asked[-1][3]) == {"name": "Rex"}


@pytest.mark.parametrize(("version", "required"), [("3.1.0", ["id", "name"]), ("3.0.3", ["id"])])
def test_keywords_beside_a_reference_count_since_openapi_3_1(
    tmp_path: Path,
    version: str,
    required: list[str],
):
    """OpenAPI 3.0 says to ignore them."""
    schema = {"$ref": "#/components/schemas/New", "required": ["name"]}
    document = with_operation("/pets/{id}", "put", requestBody=body("application/json", schema))
    shown = tools_of(provider(tmp_path, document={**document, "openapi": version}))["put_pets_id"]
    assert shown.schema()["parameters"]["required"] == required


def test_read_only_property_is_not_required_beside_a_reference_either(tmp_path: Path, api):
    """The model could not give it, so no call would be valid."""
    item = {
        "type": "object",
        "properties": {"id": {"type": "string", "readOnly": True}, "name": {"type": "string"}},
    }
    schema = {"$ref": "#/components/schemas/Item", "required": ["id", "name"]}
    document = with_operation("/pets/{id}", "put", requestBody=body("application/json", schema))
    document["components"]["schemas"]["Item"] = {**item, "required": ["id"]}
    call(
        provider(tmp_path, api, {**document, "openapi": "3.1.0"}),
        "put_pets_id",
        id="1",
        body={"name": "Rex"},
    )
    assert json.loads(api.asked[-1][3]) == {"name": "Rex"}


def test_alternatives_with_a_discriminator_may_fit_at_once(tmp_path: Path, api):
    """The property tells them apart, though each alternative takes any object of its kind."""
    kinds = [
        {"type": "object", "properties": {name: {"type": "string"}}} for name in ("bark", "meow")
    ]
    schema = {"oneOf": kinds, "discriminator": {"propertyName": "kind"}}
    pets = provider(
        tmp_path,
        api,
        with_operation("/pets/{id}", "put", requestBody=body("application/json", schema)),
    )
    call(pets, "put_pets_id", id="1", body={"kind": "cat", "meow": "loud"})
    assert json.loads(api.asked[-1][3]) == {"kind": "cat", "meow": "loud"}


def test_reference_into_a_path_is_followed(tmp_path: Path):
    """A reference is a URI: it writes braces as %7B and %7D."""
    reference = {"$ref": "#/paths/~1pets~1%7Bid%7D/parameters/0"}
    document = json.loads(json.dumps(PETS))
    document["paths"]["/toys/{id}"] = {"get": {"operationId": "getToy", "parameters": [reference]}}
    assert [
        each.name for each in tools_of(provider(tmp_path, document=document))["getToy"].parameters
    ] == ["id"]


def test_fragment_of_a_path_is_not_sent(tmp_path: Path, api):
    """Some documents tell operations of one path apart by it."""
    document = json.loads(json.dumps(PETS))
    document["paths"]["/pets/{id}#tame"] = {
        **document["paths"]["/pets/{id}"],
        "get": {"operationId": "tame"},
    }
    call(provider(tmp_path, api, document), "tame", id="1")
    assert api.asked[-1][1] == "/pets/1"


def test_path_is_written_as_a_url_holds_it(tmp_path: Path, api):
    """A document may write spaces and letters outside of ASCII, and an argument keeps its own encoding."""
    parameter = {"name": "stra\u00dfe", "in": "path", "required": True, "schema": TEXT}
    item = {"get": {"operationId": "go", "parameters": [parameter]}}
    document = {**PETS, "paths": {"/h\u00f6fe am see/{stra\u00dfe}": item}}
    (name,) = tools_of(provider(tmp_path, api, document))["go"].schema()["parameters"]["properties"]
    call(provider(tmp_path, api, document), "go", **{name: "a b%"})
    assert api.asked[-1][1] == "/h%C3%B6fe%20am%20see/a%20b%25"


def test_query_in_a_path_stays(tmp_path: Path, api):
    """Parameters are added to it."""
    document = json.loads(json.dumps(PETS))
    document["paths"]["/pets?action=count"] = {
        "get": {**PETS["paths"]["/pets"]["get"], "operationId": "count"}
    }
    call(provider(tmp_path, api, document), "count", tags=["a"])
    assert api.asked[-1][1] == "/pets?action=count&tags=a"
