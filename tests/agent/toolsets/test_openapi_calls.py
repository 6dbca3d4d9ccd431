"""OpenApiToolProvider against a real server: what it sends, and what becomes of the answers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from sayso.agent.tools import ToolExecutionError, ToolParameterError, ToolTag, collect_artifacts
from sayso.agent.tools.errors import EffectUnknownError
from sayso.agent.toolsets.base import SourceError
from sayso.agent.toolsets.openapi import OpenApiToolProvider
from sayso.config.settings.loader import load_settings
from sayso.config.wiring.tools import open_tools
from tests.agent.toolsets.pets import PETS, call, provider, refusal, tools_of, with_operation


def test_errors_of_the_api_are_readable(tmp_path: Path, api):
    """Status, operation and what it said, cut."""
    api.answer("/pets/1", {"message": "on fire " * 500}, status=500)
    said = refusal(provider(tmp_path, api), "getPet", id="1")
    assert 'pets answered 500 (Internal Server Error) to GET /pets/{id}: {"message": "on fire' in said
    assert len(said) < 700


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
        call(provider(tmp_path, api, with_operation("/pets", "post", requestBody=body)), "add_pet", body=[1, 2])["body"]
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


NICK = {"type": "object", "properties": {"nick": {"type": "string", "nullable": True}, "age": {"type": "integer"}}}


def with_body(kind: str, schema: Any) -> dict[str, Any]:
    """The document with a body of this kind to change a pet."""
    body = {"required": False, "content": {kind: {"schema": schema}}}
    return with_operation("/pets/{id}", "put", requestBody=body)


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [({"nick": None}, '{"nick": null}'), ({"nick": None, "age": None}, '{"nick": null}'), ({}, "")],
)
def test_null_in_a_json_body_is_sent_where_the_document_has_it(tmp_path: Path, api, arguments: Any, sent: str):
    """What runs is what was asked; what was left out, or cannot be null, is not sent."""
    pets = provider(tmp_path, api, with_body("application/json", NICK))
    assert call(pets, "put_pets_id", id="1", **arguments)["body"] == sent


def test_null_as_a_whole_body_is_sent(tmp_path: Path, api):
    """JSON has a word for it."""
    pets = provider(tmp_path, api, with_body("application/json", {"type": "array", "items": {}, "nullable": True}))
    assert call(pets, "put_pets_id", id="1", body=None)["body"] == "null"
    assert call(pets, "put_pets_id", id="1")["body"] == ""


def test_null_that_cannot_be_said_is_left_out(tmp_path: Path, api):
    """Forms, queries and headers have no null: an empty value would be another."""
    pets = provider(tmp_path, api, with_body("application/x-www-form-urlencoded", NICK))
    assert call(pets, "put_pets_id", id="1", nick=None, age=3)["body"] == "age=3"
    assert call(provider(tmp_path, api), "findPets", page_size_=None)["path"] == "/pets"


@pytest.mark.parametrize("kind", ["Text/Plain", "text/plain"])
def test_media_types_are_read_in_any_case(tmp_path: Path, api, kind: str):
    """As RFC 9110 has them."""
    pets = provider(tmp_path, api, with_body(kind, {"type": "string"}))
    assert call(pets, "put_pets_id", id="1", body="as it is")["body"] == "as it is"


@pytest.mark.parametrize(
    ("charset", "data"), [("iso-8859-1", b"caf\xe9"), ("ISO-8859-99", "café".encode()), ("zlib", "café".encode())]
)
def test_text_is_read_in_its_charset(tmp_path: Path, api, charset: str, data: bytes):
    """One that nobody knows is taken for UTF-8."""
    api.answer("/pets/1", data, Content_Type=f"text/plain; charset={charset}")
    assert call(provider(tmp_path, api), "getPet", id="1") == "café"


def test_a_fixed_argument_is_sent_and_never_shown(tmp_path: Path, api):
    """Such as an account's id: the model is not asked for it and cannot choose another."""
    pets = provider(tmp_path, api, arguments={"id": "7"})
    tool = tools_of(pets)["getPet"]
    assert "id" not in tool.schema()["parameters"]["properties"]
    call(pets, "getPet")
    assert api.asked[0][1] == "/pets/7"
    with pytest.raises(ToolParameterError, match="'id' is not a valid parameter"):
        call(pets, "getPet", id="8")


def test_a_fixed_argument_stands_in_the_yaml(tmp_path: Path, api):
    """A text such as an account's id stays one, also where it looks like a number."""
    document = {**PETS, "servers": [{"url": api.url}]}
    (tmp_path / "pets.json").write_text(json.dumps(document))
    file = tmp_path / "bot.yaml"
    file.write_text(
        f"tools:\n  - openapi: ./pets.json\n    base_url: {api.url}\n    include: [getPet, deletePet]\n"
        "    arguments: {id: '007'}\nchannels: {web: {platform: console}}\n"
    )
    opened = open_tools(load_settings(file, {}))
    try:
        tool = next(tool for tool in opened.tools if tool.name == "getPet")
        assert "id" not in tool.schema()["parameters"]["properties"]
        asyncio.run(tool.ainvoke({}))
    finally:
        opened.close()
    assert api.asked[0][1] == "/pets/007"


def test_a_fixed_argument_that_no_operation_takes_is_an_error(tmp_path: Path):
    """A misspelled one would silently be lost."""
    with pytest.raises(SourceError, match="no operation takes the fixed arguments \\['idd'\\]"):
        tools_of(provider(tmp_path, arguments={"idd": "7"}))


def test_yaml_that_is_nested_without_end_is_refused(tmp_path: Path):
    """libyaml would overflow the stack, and the process would be gone."""
    file = tmp_path / "deep.yaml"
    file.write_text("- " * 1_000_000 + "x")
    with pytest.raises(SourceError, match="nested too deeply"):
        tools_of(OpenApiToolProvider(file, base_url="https://pets.example.com"))
