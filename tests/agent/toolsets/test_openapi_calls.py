"""OpenApiToolProvider with a real server: the requests it sends, and the results it makes of the answers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from sayso.agent import (
    Agent,
    ChannelAgent,
    ScriptedProvider,
    ToolCall,
    ToolExecutionError,
    ToolParameterError,
    ToolTag,
)
from sayso.agent.channel.behavior import ChannelBehavior
from sayso.agent.tools.environment import collect_artifacts
from sayso.agent.tools.errors import EffectUnknownError
from sayso.agent.toolsets.base import SourceError, runnable_tools
from sayso.agent.toolsets.openapi import OpenApiToolProvider
from sayso.config.settings.loader import load_settings
from sayso.config.wiring.tools import open_tools
from tests.agent.toolsets.pets import PETS, call, provider, refusal, tools_of, with_operation


def test_errors_of_the_api_are_readable(tmp_path: Path, api):
    """The error has the status, the operation and the beginning of the answer."""
    api.answer("/pets/1", {"message": "on fire " * 500}, status=500)
    said = refusal(provider(tmp_path, api), "getPet", id="1")
    assert (
        'pets answered 500 (Internal Server Error) to GET /pets/{id}: {"message": "on fire' in said
    )
    assert len(said) < 700


@pytest.mark.parametrize(
    ("status", "error"),
    [(400, ToolExecutionError), (503, ToolExecutionError), (504, EffectUnknownError)],
)
def test_gateway_timeout_leaves_the_effect_unknown(
    tmp_path: Path, api, status: int, error: type[Exception]
):
    """A refused call had no effect; behind a gateway that timed out it may have had one."""
    api.answer("/pets/1", "", status=status)
    pets = provider(tmp_path, api)
    with pytest.raises(ToolExecutionError) as caught:
        call(pets, "deletePet", id="1")
    assert type(caught.value) is error
    with pytest.raises(ToolExecutionError) as caught:
        call(pets, "getPet", id="1")
    assert type(caught.value) is ToolExecutionError


def test_arguments_are_sent_where_the_document_says(tmp_path: Path, api):
    """The places are path, query in its styles, header and cookie."""
    call(
        provider(tmp_path, api),
        "findPets",
        **{
            "tags": ["a", "b c"],
            "ids": [1, 2],
            "filter": {"age": 3},
            "page_size_": 5,
            "X-Trace": "t",
            "theme": "d;k",
        },
    )
    _, path, headers, _ = api.asked[0]
    assert path == "/pets?tags=a&tags=b%20c&ids=1,2&filter%5Bage%5D=3&page%5Bsize%5D=5"
    assert (headers["x-trace"], headers["cookie"]) == ("t", "theme=d%3Bk")


@pytest.mark.parametrize(
    ("where", "more", "value", "found"),
    [
        ("query", {"explode": False}, ["Paris, France", "Rome"], ","),
        ("query", {"style": "pipeDelimited", "explode": False}, ["a|b"], "|"),
        ("query", {"style": "spaceDelimited", "explode": False}, ["a b"], " "),
        ("header", {}, ["a,b"], ","),
        ("header", {"explode": True}, {"k=": "v"}, "="),
        ("cookie", {"explode": False}, ["a,b"], ","),
    ],
)
def test_value_that_servers_would_read_as_two_is_not_sent(
    tmp_path: Path, api, where: str, more: Any, value: Any, found: str
):
    """Most servers decode a list before they split it."""
    parameter = {"name": "p", "in": where, "schema": {}, **more}
    pets = provider(tmp_path, api, with_operation("/pets", "get", parameters=[parameter]))
    assert f"no value of this list may contain {found!r}" in refusal(pets, "findPets", p=value)
    assert api.asked == []


def test_whole_number_is_written_as_an_integer(tmp_path: Path, api):
    """A model may write 3.0, which a server refuses where it wants an integer."""
    call(provider(tmp_path, api), "findPets", page_size_=3.0)
    assert api.asked[0][1] == "/pets?page%5Bsize%5D=3"


def test_header_cannot_be_split(tmp_path: Path, api):
    """A line break in a header value would start another header."""
    assert "a header holds printable ASCII only" in refusal(
        provider(tmp_path, api), "findPets", **{"X-Trace": "a\r\nX-Admin: 1"}
    )
    assert api.asked == []


def test_bodies_are_json_or_forms(tmp_path: Path, api):
    """Parameters with the same name are distinguished, and form values are encoded."""
    pets = provider(tmp_path, api)
    assert json.loads(call(pets, "put_pets_id", id="1", name="Rex", age=3)["body"]) == {
        "name": "Rex",
        "age": 3,
    }
    assert call(pets, "add_pet", name="a&b", tame=True)["body"] == "name=a%26b&tame=true"
    assert [headers["content-type"] for _, _, headers, _ in api.asked] == [
        "application/json",
        "application/x-www-form-urlencoded",
    ]


def test_body_that_is_no_object_is_a_single_argument(tmp_path: Path, api):
    """The body may be a list."""
    body = {
        "required": True,
        "content": {
            "application/json": {"schema": {"type": "array", "items": {"type": "integer"}}}
        },
    }
    assert (
        call(
            provider(tmp_path, api, with_operation("/pets", "post", requestBody=body)),
            "add_pet",
            body=[1, 2],
        )["body"]
        == "[1, 2]"
    )


def test_changing_operations_need_approval_by_default(tmp_path: Path):
    """The HTTP method decides, and the operator can override it: GET only reads."""
    pets = provider(tmp_path)
    tags = {
        name: ToolTag.DESTRUCTIVE in tool.metadata.tags for name, tool in tools_of(pets).items()
    }
    assert tags == {
        "getPet": False,
        "deletePet": True,
        "put_pets_id": True,
        "findPets": False,
        "add_pet": True,
    }
    assert [name for name, tool in tools_of(pets).items() if tool.read_only] == [
        "getPet",
        "findPets",
    ]
    assert not any(
        ToolTag.DESTRUCTIVE in tool.metadata.tags
        for tool in tools_of(pets, confirm="never").values()
    )
    asking = tools_of(pets, confirm=["find*"], namespace="shop")
    assert [name for name, tool in asking.items() if tool.requires_approval] == ["shop-findPets"]


def test_files_reach_the_user(tmp_path: Path, api):
    """The file name from the server loses its path."""
    api.answer(
        "/pets/1",
        b"%PDF",
        Content_Disposition='attachment; filename="../../pet.pdf"',
        Content_Type="application/pdf",
    )
    with collect_artifacts() as files:
        result = call(provider(tmp_path, api), "getPet", id="1")
    assert result == "(handed to the user: pet.pdf, application/pdf, 4 bytes)"
    assert [(file.filename, file.data) for file in files] == [("pet.pdf", b"%PDF")]


def test_text_that_is_a_download_reaches_the_user_and_the_model(tmp_path: Path, api):
    """An export is a file, and the model answers questions about it."""
    api.answer(
        "/pets/1",
        "name\nRex\n",
        Content_Disposition="attachment; filename=pets.csv",
        Content_Type="text/csv",
    )
    with collect_artifacts() as files:
        result = call(provider(tmp_path, api), "getPet", id="1")
    assert result == "(handed to the user: pets.csv, text/csv, 9 bytes)\nname\nRex\n"
    assert [(file.filename, file.data) for file in files] == [("pets.csv", b"name\nRex\n")]


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("attachment; filename=\"x.pdf\"; filename*=UTF-8''%D0%9E%D1%82.pdf", "От.pdf"),
        ('attachment; filename="a;b.pdf"', "a;b.pdf"),
        ("attachment; filename*=UTF-8''%2e%2e%2Fb.pdf", "b.pdf"),
        ('attachment; filename="C:\\\\tmp\\\\b.pdf"', "b.pdf"),
        ('attachment; filename="=?UTF-8?B?0J7Rgi5wZGY=?="', "От.pdf"),
        ('attachment; filename="a%20b.pdf"', "a b.pdf"),
        ('attachment; filename="100% of a.pdf"', "100% of a.pdf"),
        ('attachment; filename="%ff.pdf"', "%ff.pdf"),
        ("attachment", "1.pdf"),
        ('attachment; filename="report"', "report.pdf"),
        ('attachment; filename="a:b?.pdf. "', "a_b_.pdf"),
        ('attachment; filename="CON.pdf"', "_CON.pdf"),
        ("attachment; filename*=iso-8859-1'en'%A3%20rates.pdf", "£ rates.pdf"),
        ("attachment; filename*0=long-; filename*1=name.pdf", "long-name.pdf"),
        ('attachment; filename=".."', "1.pdf"),
        ("attachment; filename*=idna''x.pdf", "1.pdf"),
        ("attachment; filename=" + "x" * 300 + ".pdf", "x" * 116 + ".pdf"),
    ],
)
def test_name_of_a_file_is_read_as_http_says(tmp_path: Path, api, header: str, name: str):
    """RFC 6266 and 8187: quotes, `filename*` before `filename`, and no path.

    Without a name, the request's path and the media type give one.
    """
    api.answer("/pets/1", b"%PDF", Content_Disposition=header, Content_Type="application/pdf")
    with collect_artifacts() as files:
        call(provider(tmp_path, api), "getPet", id="1")
    assert [file.filename for file in files] == [name]


def test_answers_become_values_text_or_none(tmp_path: Path, api):
    """JSON is parsed, text is unchanged, and an empty answer is None."""
    api.answer("/pets/1", "plain")
    api.answer("/pets/2", b"", status=204)
    pets = provider(tmp_path, api)
    assert (call(pets, "getPet", id="1"), call(pets, "getPet", id="2")) == ("plain", None)


def test_deeply_nested_answer_is_returned_as_text(tmp_path: Path, api):
    """No recursion error leaves the tool."""
    api.answer("/pets/1", b"[" * 100_000, Content_Type="application/json")
    assert call(provider(tmp_path, api), "getPet", id="1").startswith("[[[")


@pytest.mark.parametrize("value", ["\ud800", float("nan"), float("inf")])
def test_unserializable_argument_is_a_failed_outcome(tmp_path: Path, api, value: Any):
    """A lone surrogate has no bytes, and JSON has no infinity."""
    outcome = asyncio.run(provider(tmp_path, api).execute_tool("getPet", {"id": value}))
    assert "'id' cannot be sent" in (outcome.error or "")
    assert api.asked == []


def test_call_without_a_path_argument_is_not_sent(tmp_path: Path, api):
    """Null cannot be a part of a path."""
    outcome = asyncio.run(provider(tmp_path, api).execute_tool("getPet", {"id": None}))
    assert "['id'] must be given" in (outcome.error or "")
    assert api.asked == []


NICK = {
    "type": "object",
    "properties": {"nick": {"type": "string", "nullable": True}, "age": {"type": "integer"}},
}


def with_body(kind: str, schema: Any) -> dict[str, Any]:
    """Return the document with a body of this type for changing a pet."""
    body = {"required": False, "content": {kind: {"schema": schema}}}
    return with_operation("/pets/{id}", "put", requestBody=body)


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [({"nick": None}, '{"nick": null}'), ({"nick": None, "age": None}, '{"nick": null}'), ({}, "")],
)
def test_null_in_a_json_body_is_sent_where_the_schema_allows_it(
    tmp_path: Path, api, arguments: Any, sent: str
):
    """A missing value, or a null that the schema forbids, is not sent."""
    pets = provider(tmp_path, api, with_body("application/json", NICK))
    assert call(pets, "put_pets_id", id="1", **arguments)["body"] == sent


def test_null_as_a_whole_body_is_sent(tmp_path: Path, api):
    """JSON can express a null body."""
    pets = provider(
        tmp_path,
        api,
        with_body("application/json", {"type": "array", "items": {}, "nullable": True}),
    )
    assert call(pets, "put_pets_id", id="1", body=None)["body"] == "null"
    assert call(pets, "put_pets_id", id="1")["body"] == ""


def test_null_without_a_notation_is_left_out(tmp_path: Path, api):
    """Forms, queries and headers have no null, and an empty value would mean something else."""
    pets = provider(tmp_path, api, with_body("application/x-www-form-urlencoded", NICK))
    assert call(pets, "put_pets_id", id="1", nick=None, age=3)["body"] == "age=3"
    assert call(provider(tmp_path, api), "findPets", page_size_=None)["path"] == "/pets"


@pytest.mark.parametrize("kind", ["Text/Plain", "text/plain"])
def test_media_types_ignore_case(tmp_path: Path, api, kind: str):
    """RFC 9110 defines them so."""
    pets = provider(tmp_path, api, with_body(kind, {"type": "string"}))
    assert call(pets, "put_pets_id", id="1", body="as it is")["body"] == "as it is"


@pytest.mark.parametrize(
    ("charset", "data"),
    [("iso-8859-1", b"caf\xe9"), ("ISO-8859-99", "café".encode()), ("zlib", "café".encode())],
)
def test_text_is_decoded_with_its_charset(tmp_path: Path, api, charset: str, data: bytes):
    """An unknown charset is treated as UTF-8."""
    api.answer("/pets/1", data, Content_Type=f"text/plain; charset={charset}")
    assert call(provider(tmp_path, api), "getPet", id="1") == "café"


def test_fixed_argument_is_sent_and_hidden_from_the_model(tmp_path: Path, api):
    """It may be an account id, which the model neither sees nor changes."""
    pets = provider(tmp_path, api, arguments={"id": "7"})
    tool = tools_of(pets)["getPet"]
    assert "id" not in tool.schema()["parameters"]["properties"]
    call(pets, "getPet")
    assert api.asked[0][1] == "/pets/7"
    with pytest.raises(ToolParameterError, match="'id' is not a valid parameter"):
        call(pets, "getPet", id="8")


def test_fixed_argument_is_configured_in_yaml(tmp_path: Path, api):
    """A quoted value that looks like a number stays a string."""
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


def test_several_keys_are_configured_in_yaml(tmp_path: Path, api):
    """An API may take two at once."""
    (tmp_path / "pets.json").write_text(json.dumps(PETS))
    file = tmp_path / "bot.yaml"
    file.write_text(
        f"tools:\n  - openapi: ./pets.json\n    base_url: {api.url}\n    include: [getPet]\n"
        "    auth: {header: X-Key, value: '${KEY}'}\n    more_auth: [{bearer: '${APP}'}]\n"
        "channels: {web: {platform: console}}\n"
    )
    opened = open_tools(load_settings(file, {"KEY": "k1234", "APP": "a1234"}))
    asyncio.run(opened.tools[0].ainvoke({"id": "1"}))
    opened.close()
    headers = api.asked[0][2]
    assert (headers["x-key"], headers["authorization"]) == ("k1234", "Bearer a1234")


def test_fixed_argument_that_no_operation_takes_is_an_error(tmp_path: Path):
    """A misspelled argument would silently be lost."""
    with pytest.raises(SourceError, match="no operation takes the fixed arguments \\['idd'\\]"):
        tools_of(provider(tmp_path, arguments={"idd": "7"}))


def test_deeply_nested_yaml_is_refused(tmp_path: Path):
    """libyaml would overflow the stack and end the process."""
    file = tmp_path / "deep.yaml"
    file.write_text("- " * 1_000_000 + "x")
    with pytest.raises(SourceError, match="nested too deeply"):
        tools_of(OpenApiToolProvider(file, base_url="https://pets.example.com"))


PAGE = "<html><head><title>503 Out of order</title></head><body><h1>503 Out of order</h1><hr>nginx</body></html>"


@pytest.mark.parametrize(
    ("answer", "status", "kind", "told"),
    [
        ({"id": 7, "owner": {"name": "Ana", "id": 9}, "tags": []}, 200, "", "ID: 7\nOwner: Ana"),
        ('{"deleted": true}', 200, "text/plain", "Deleted: yes"),
        (
            '<pet id="7"><state>gone</state></pet>',
            200,
            "application/xml",
            "Pet:\nID: 7\nState: gone",
        ),
        ("", 204, "", ""),
        (
            {"title": "Locked", "status": 409},
            409,
            "application/problem+json",
            ": Locked (status 409)",
        ),
        (PAGE, 503, "text/html", ": 503 Out of order nginx"),
    ],
    ids=["object", "JSON as text", "XML", "nothing", "problem", "page of a proxy"],
)
@pytest.mark.parametrize("after", ["say", "continue"])
def test_person_never_reads_raw_data_of_an_api(
    tmp_path: Path, api, answer, status, kind, told, after
):
    """Neither as the fixed answer nor as the outcome above the words of a model."""
    api.answer("/pets/7", answer, status=status, **({"Content_Type": kind} if kind else {}))
    pets = provider(tmp_path, api)
    tools = runnable_tools(pets, asyncio.run(pets.list_tools()))
    model = ScriptedProvider([ToolCall("deletePet", {"id": "7"}, "c1"), "Anything else?"])
    bot = ChannelAgent(Agent(tools, model), behavior=ChannelBehavior(after=after))
    assert "deletePet" in bot.ask_channel("ana", "delete pet 7").content
    content = bot.ask_channel("ana", "yes").content
    outcome = content.removesuffix("\n\nAnything else?")
    assert told in outcome
    assert not any(mark in outcome for mark in ('{"', "[{", "</", "<p"))
