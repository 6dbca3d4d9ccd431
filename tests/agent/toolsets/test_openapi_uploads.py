"""OpenAPI: operations that take files send those that the user sent, exactly as the question named them."""

from __future__ import annotations

import asyncio
import email.parser
import email.policy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sayso.agent import (
    Agent,
    AgentConfig,
    AgentObserver,
    AgentResult,
    ChannelAgent,
    ScriptedProvider,
    ToolCall,
)
from sayso.agent.guards.policy import ToolPolicy
from sayso.agent.toolsets import openapi_files
from sayso.agent.toolsets.base import runnable_tools
from sayso.agent.toolsets.openapi import OpenApiToolProvider
from sayso.agent.toolsets.openapi_request import Auth
from sayso.channels.types import Conversation, Media, Turn
from tests.agent.toolsets.conftest import Api
from tests.agent.toolsets.pets import provider, tools_of, with_operation
from tests.memory_stores import MemoryMediaStore

BINARY = {"type": "string", "format": "binary"}
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
FORM = {
    "type": "object",
    "required": ["photo"],
    "properties": {
        "title": {"type": "string"},
        "photo": {**BINARY, "description": "Its photo."},
        "papers": {"type": "array", "items": BINARY},
        "tags": {"type": "array", "items": {"type": "string"}},
        "owner": {"type": "object"},
    },
}


def with_upload(kind: str, schema: Any, **media: Any) -> dict[str, Any]:
    """Return the document with an operation that takes this body."""
    request_body = {"required": True, "content": {kind: {"schema": schema, **media}}}
    return with_operation("/pets/{id}", "put", operationId="setPhoto", requestBody=request_body)


class Desk:
    """A bot with the operation `setPhoto`, a store of media, and one person."""

    def __init__(
        self,
        pets: OpenApiToolProvider,
        *calls: ToolCall,
        observers: Any = (),
        **policy: Any,
    ) -> None:
        self.store = MemoryMediaStore()
        self.provider = ScriptedProvider([*calls, "ok", "ok"])
        tools = runnable_tools(pets, asyncio.run(pets.list_tools()), namespace="shop")
        agent = Agent(
            tools,
            self.provider,
            config=AgentConfig(tool_policy=ToolPolicy(**policy), observers=observers),
        )
        self.bot = ChannelAgent(agent, media=self.store)
        self.count = 0

    def file(self, data: bytes, filename: str, mime_type: str) -> Media:
        """Put a file in the store."""
        return self.store.put(data, mime_type=mime_type, filename=filename)

    def say(self, text: str, *media: Media) -> str:
        """Send a message with files and return the answer."""
        self.count += 1
        turn = Turn(f"e{self.count}", Conversation("chat", "1"), "ana", text, media=media)
        return "\n".join(reply.text for reply in asyncio.run(self.bot.take(turn)))

    @property
    def result(self) -> str:
        """Return the last result that the model read."""
        messages = self.provider.requests[-1].messages
        return next(
            message.content for message in reversed(messages) if message.role.value == "tool"
        )


def set_photo(**arguments: Any) -> ToolCall:
    """Return a call of the model."""
    return ToolCall("shop-setPhoto", {"id": "1", **arguments})


def parts_of(api: Any) -> list[tuple[str, str | None, str, bytes]]:
    """Return name, file name, type and bytes of each part of the last request, as a mail parser reads them."""
    _, _, headers, data = api.asked[-1]
    raw = f"Content-Type: {headers['content-type']}\r\n\r\n".encode() + data
    form = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(raw)
    return [
        (
            str(part.get_param("name", header="content-disposition")),
            part.get_filename(),
            part.get_content_type(),
            part.get_payload(decode=True),
        )
        for part in form.iter_parts()
    ]


def test_file_is_sent_as_the_question_named_it(tmp_path: Path, api):
    """The question has name, type, size and digest.

    After the yes the same bytes are sent with the other fields.
    """
    call = set_photo(
        title="Rex",
        photo="rex.png",
        papers=["a.txt", "b.txt"],
        tags=["x", "y"],
        owner={"name": "Ana"},
    )
    desk = Desk(provider(tmp_path, api, with_upload("multipart/form-data", FORM)), call)
    photo = desk.file(PNG, "rex.png", "image/png")
    papers = [desk.file(name.encode(), name, "text/plain") for name in ("a.txt", "b.txt")]
    question = desk.say("set it", photo, *papers)
    assert f"photo = rex.png (image/png; 264 B; SHA-256 {photo.ref[:16]})" in question.replace(
        "\\", ""
    )
    assert "a.txt (text/plain; 5 B; SHA-256" in question.replace("\\", "")
    assert api.asked == []
    desk.say("yes")
    assert len(api.asked) == 1
    assert parts_of(api) == [
        ("title", None, "text/plain", b"Rex"),
        ("photo", "rex.png", "image/png", PNG),
        ("papers", "a.txt", "text/plain", b"a.txt"),
        ("papers", "b.txt", "text/plain", b"b.txt"),
        ("tags", None, "text/plain", b"x"),
        ("tags", None, "text/plain", b"y"),
        ("owner", None, "application/json", b'{"name": "Ana"}'),
    ]


def test_file_that_was_deleted_before_the_yes_is_not_sent(tmp_path: Path, api):
    """The user reads that it must be sent again."""
    desk = Desk(
        provider(tmp_path, api, with_upload("image/png", BINARY)), set_photo(file="rex.png")
    )
    assert "rex.png" in desk.say(
        "set it", Media("0" * 64, "image/png", "rex.png", 264, stored=True)
    )
    assert "file 'rex.png' was deleted after a week: it must be sent again" in desk.say("yes")
    assert api.asked == []


def test_file_that_is_sent_before_the_yes_is_not_taken_instead(tmp_path: Path, api):
    """It has the same name, and ends the question."""
    desk = Desk(
        provider(tmp_path, api, with_upload("image/png", BINARY)), set_photo(file="rex.png")
    )
    desk.say("set it", desk.file(PNG, "rex.png", "image/png"))
    desk.say("yes", desk.file(PNG + b"!", "rex.png", "image/png"))
    desk.say("yes")
    assert api.asked == []


@pytest.mark.parametrize(
    ("kind", "mime_type", "sent_as"),
    [
        ("image/png", "image/png", "image/png"),
        ("image/*", "image/png", "image/png"),
        ("*/*", "image/png", "image/png"),
        ("application/octet-stream", "image/png", "application/octet-stream"),
        ("application/zip", "application/octet-stream", "application/zip"),
        ("image/jpeg", "image/png", ""),
        ("video/*", "image/png", ""),
        ("image/*", "application/octet-stream", ""),
    ],
)
@pytest.mark.parametrize("schema", [BINARY, {}])
def test_whole_body_is_a_file_of_the_documents_type(
    tmp_path: Path, api, kind: str, mime_type: str, sent_as: str, schema: Any
):
    """A file of another known type is refused before anyone is asked."""
    desk = Desk(
        provider(tmp_path, api, with_upload(kind, schema)), set_photo(file="rex.png"), allow=["*"]
    )
    desk.say("set it", desk.file(PNG, "rex.png", mime_type))
    sent = [(headers["content-type"], data) for _, _, headers, data in api.asked]
    assert sent == ([(sent_as, PNG)] if sent_as else [])
    assert (f"'rex.png' is {mime_type}" in desk.result) == (not sent_as)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"photo": "b.png"}, "file 'b.png' was not sent: there are ['rex.png']"),
        (
            {"photo": "rex.png", "papers": ["rex.png"] * 10},
            "11 files cannot be sent at once: at most 10",
        ),
        ({"photo": ""}, "give the name of a file that the user sent"),
    ],
)
@pytest.mark.parametrize("policy", [{}, {"allow": ["*"]}])
def test_files_that_cannot_be_sent_are_named_to_the_model(
    tmp_path: Path, api, arguments: Any, reason: str, policy: Any
):
    """No one is asked about them, and nothing is sent."""
    pets = provider(tmp_path, api, with_upload("multipart/form-data", FORM))
    desk = Desk(pets, set_photo(**arguments), **policy)
    assert desk.say("set it", desk.file(PNG, "rex.png", "image/png")) == "ok"
    assert reason in desk.result
    assert api.asked == []


def test_size_of_an_upload_is_bounded(tmp_path: Path, api, monkeypatch: pytest.MonkeyPatch):
    """All files of a call count together."""
    monkeypatch.setattr(openapi_files, "MAX_UPLOAD_BYTES", 500)
    pets = provider(tmp_path, api, with_upload("multipart/form-data", FORM))
    desk = Desk(pets, set_photo(photo="rex.png", papers=["rex.png"]))
    desk.say("set it", desk.file(PNG, "rex.png", "image/png"))
    assert "the files have 528 bytes together: at most 500" in desk.result


def test_name_of_a_file_cannot_leave_its_part(tmp_path: Path, api):
    """Quotes and folders are a sender's choice."""
    name = 'a/b\\c";x="\u20ac.png'
    desk = Desk(
        provider(tmp_path, api, with_upload("multipart/form-data", FORM)),
        set_photo(photo=name),
        allow=["*"],
    )
    desk.say("set it", desk.file(PNG, name, "image/png"))
    assert b'; name="photo"; filename="c%22;x=%22\xe2\x82\xac.png"\r\n' in api.asked[-1][3]
    assert [part[3] for part in parts_of(api)] == [PNG]


@pytest.mark.parametrize(
    ("schema", "encoding"),
    [
        (BINARY, {}),
        ({"type": "string", "contentMediaType": "image/png"}, {}),
        ({"anyOf": [BINARY, {"type": "null"}]}, {}),
        ({**BINARY, "nullable": True}, {}),
        ({"oneOf": [BINARY, {"type": "string", "format": "uri"}]}, {}),
        ({}, {"contentType": "image/png, image/jpeg"}),
    ],
)
def test_ways_to_write_a_file_in_a_document(tmp_path: Path, schema: Any, encoding: Any):
    """OpenAPI 3.0 has a format, 3.1 the media type of the content, and both the encoding of a part."""
    form = {"properties": {"photo": schema}}
    pets = provider(
        tmp_path, document=with_upload("multipart/form-data", form, encoding={"photo": encoding})
    )
    parameter = tools_of(pets)["setPhoto"].schema()["parameters"]["properties"]["photo"]
    assert parameter["description"].endswith(
        "The name of a file that the user sent in this conversation."
    )


def test_one_file_or_several_are_sent_as_a_list_of_them(tmp_path: Path, api):
    """In a form, one file is written as a list of one is."""
    form = {"properties": {"photo": {"anyOf": [BINARY, {"type": "array", "items": BINARY}]}}}
    pets = provider(tmp_path, api, with_upload("multipart/form-data", form))
    desk = Desk(pets, set_photo(photo=["rex.png"]), allow=["*"])
    desk.say("set it", desk.file(PNG, "rex.png", "image/png"))
    assert parts_of(api) == [("photo", "rex.png", "image/png", PNG)]


def test_file_that_may_be_missing_in_json_leaves_the_operation_out(tmp_path: Path):
    """JSON holds no file, and its name would be sent in its place."""
    form = {"properties": {"photo": {"anyOf": [BINARY, {"type": "null"}]}}}
    pets = provider(tmp_path, document=with_upload("application/json", form))
    tools_of(pets)
    assert "has the file 'photo' in JSON" in pets.left_out["setPhoto"]


def test_text_in_base64_is_no_file(tmp_path: Path):
    """The document asks for its text."""
    form = {
        "properties": {
            "photo": {
                "type": "string",
                "contentMediaType": "image/png",
                "contentEncoding": "base64",
            }
        }
    }
    pets = provider(tmp_path, document=with_upload("multipart/form-data", form))
    assert (
        "description"
        not in tools_of(pets)["setPhoto"].schema()["parameters"]["properties"]["photo"]
    )


def test_part_is_written_as_its_encoding_says(tmp_path: Path, api):
    """A text can have a media type of its own, and a file only one of those that are listed."""
    form = {"properties": {"note": {"type": "string"}, "meta": {}, "photo": BINARY}}
    encoding = {
        "note": {"contentType": "text/markdown"},
        "meta": {"contentType": "application/json"},
        "photo": {"contentType": "image/jpeg"},
    }
    pets = provider(tmp_path, api, with_upload("multipart/form-data", form, encoding=encoding))
    desk = Desk(pets, set_photo(note="*a*", meta="b"), set_photo(photo="rex.png"), allow=["*"])
    photo = desk.file(PNG, "rex.png", "image/png")
    desk.say("set it", photo)
    assert parts_of(api) == [
        ("note", None, "text/markdown", b"*a*"),
        ("meta", None, "application/json", b'"b"'),
    ]
    assert "takes files of the type image/jpeg, and 'rex.png' is image/png" in desk.result


SECRET = "s3cr3t-value-42"
#: How and where a server redirects an upload: a status, and a URL of another server or of its own.
REDIRECTS = {
    "another host": (307, "{other}/pets/1"),
    "another host, as GET": (303, "{other}/pets/1"),
    "a private address": (308, "http://169.254.169.254/latest/"),
    "plain http": (301, "http://pets.example.com/pets/1"),
    "its own host": (302, "/pets/2"),
    "its own host by name": (307, "{own}/pets/2?key=" + SECRET),
    "no URL": (308, "http://"),
    "no location": (307, ""),
}


class Watch(AgentObserver):
    """Keeps the traces of runs and the errors of tools, as texts."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def on_tool_error(
        self,
        run_id: str,
        call_id: str,
        tool_name: str,
        error: BaseException,
        *more: Any,
    ) -> None:
        """Keep the error."""
        self.texts.append(f"{error} {more}")

    def on_run_end(self, run_id: str, result: AgentResult) -> None:
        """Keep the trace."""
        self.texts.append(str(result.trace and result.trace.to_dict()))


@pytest.fixture
def other_api() -> Iterator[Api]:
    """Yield another server, to which nothing may be sent."""
    server = Api()
    yield server
    server.server.shutdown()
    server.server.server_close()


@pytest.mark.parametrize("how", REDIRECTS)
def test_redirect_of_an_upload_is_not_followed(
    tmp_path: Path, api, other_api, caplog: pytest.LogCaptureFixture, how: str
):
    """Neither the file nor a key reaches another address, and the key stands in no text and in no log."""
    caplog.set_level("DEBUG")
    status, where = REDIRECTS[how]
    location = {"Location": where.format(other=other_api.url, own=api.url)} if where else {}
    api.answer("/pets/1", f"Moved, key={SECRET}", status=status, **location)
    watch = Watch()
    pets = provider(
        tmp_path, api, with_upload("multipart/form-data", FORM),
        auth=[Auth("query", "key", SECRET), Auth("header", "X-Key", SECRET)],
    )  # fmt: skip
    desk = Desk(pets, set_photo(photo="rex.png"), observers=[watch])
    shown = [
        desk.say("set it", desk.file(PNG, "rex.png", "image/png")),
        desk.say("yes"),
        desk.say("what happened?"),
    ]
    assert [(method, path) for method, path, _, _ in api.asked] == [
        ("PUT", f"/pets/1?key={SECRET}")
    ]
    assert other_api.asked == []
    assert "cannot tell whether it finished" in shown[-2]
    shown += [*watch.texts, *map(str, desk.provider.requests)]
    shown += [f"{record.getMessage()} {vars(record)}" for record in caplog.records]
    assert [text for text in shown if SECRET in text] == []
    assert [text for text in shown if "redirects" in text or "answered 307" in text] != []
