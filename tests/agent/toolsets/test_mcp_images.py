"""Images of MCP tools: a vision model sees them, the user receives them, and no text contains base64."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from mcp.types import (
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ResourceLink,
    TextContent,
)

from sayso.agent import Agent, AgentConfig
from sayso.agent.messages import Message, Role, ToolCall
from sayso.agent.run.state import CallOutcome
from sayso.agent.tools.environment import Artifact, collect_artifacts
from sayso.agent.toolsets.mcp import MAX_CURSOR_CHARS, MAX_FILES, FileSender, error_text, value_of
from sayso.channels.types import Media
from tests.agent.providers.conftest import MAKERS, Server, process, server  # noqa: F401  # fixtures
from tests.agent.providers.test_contract import ask, called
from tests.agent.toolsets.pets import tools_of
from tests.agent.toolsets.test_mcp import call

#: The image of the tiny server: a red pixel with padding. Importing the server would turn logging off.
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
IMAGE = base64.b64decode(PIXEL) + bytes(300)


def images(body: dict[str, Any]) -> int:
    """Return how often a request contains the image."""
    return (
        json.dumps(body).replace("-", "+").replace("_", "/").count(base64.b64encode(IMAGE).decode())
    )


def test_base64_in_an_answer_becomes_a_file(shared_tiny):
    """The answer may repeat it; a short id stays text."""
    with collect_artifacts() as files:
        outcome = call(shared_tiny, "chart")
    assert base64.b64encode(IMAGE).decode()[:40] not in str(outcome.result)
    assert "aB3" * 30 in str(outcome.result)
    assert "Sales" in str(outcome.result)
    assert [(file.data, file.mime_type, file.shown) for file in files] == [
        (IMAGE, "image/png", True)
    ]


@pytest.mark.parametrize("name", ["openai", "anthropic", "gemini"])
def test_vision_model_is_shown_the_image(shared_tiny, server: Server, name: str) -> None:  # noqa: F811  # the fixture
    """The image is in the vendor's own format for this run only, and the transcript has no bytes."""
    tool = tools_of(shared_tiny)["chart"]
    server.script({"calls": [called("chart", "c1")]}, {"text": "It is red."}, {"text": "Yes."})
    agent = Agent([tool], MAKERS[name](server.url), AgentConfig(model="", max_retries=0))
    result = agent.run("What is on the chart?")
    assert result.content == "It is red."
    assert images(server.bodies[1]) == 1
    assert base64.b64encode(IMAGE).decode() not in json.dumps(
        [message.to_dict() for message in result.messages]
    )
    assert [artifact.data for artifact in result.artifacts] == [IMAGE]


@pytest.mark.parametrize("name", ["openai", "anthropic", "gemini"])
def test_stored_image_is_shown_after_a_killed_worker(server: Server, name: str) -> None:  # noqa: F811  # the fixture
    """The successor reads the outcome from the journal and the bytes from the media store."""
    media = Media("ref-1", "image/png", "file.png", len(IMAGE))
    outcome = CallOutcome(
        ToolCall("chart", {}, "c1"),
        "Here.",
        artifacts=(Artifact(mime_type="image/png", shown=True, media=media),),
    )
    said = [
        Message(Role.USER, "Draw"),
        Message(Role.ASSISTANT, tool_calls=(outcome.call,)),
        outcome.message,
    ]
    server.script({"text": "It is red."})
    ask(MAKERS[name](server.url, load_media=lambda media: {"ref-1": IMAGE}[media.ref]), *said)
    assert images(server.bodies[0]) == 1


def test_model_without_vision_gets_a_note(shared_tiny, server: Server) -> None:  # noqa: F811  # the fixture
    """It receives no image and can say so."""
    tool = tools_of(shared_tiny)["chart"]
    server.script({"calls": [called("chart", "c1")]}, {"text": "I cannot see it."})
    blind = MAKERS["compatible"](server.url, accepts=())
    Agent([tool], blind, AgentConfig(model="", max_retries=0)).run("What is on the chart?")
    assert images(server.bodies[1]) == 0
    assert "you cannot see the image" in json.dumps(server.bodies[1])


@pytest.mark.parametrize(
    "text",
    [
        "f" * 600, "deadbeef01" * 60, "\n".join(f"INV-2026-Abc{number:06}" for number in range(60)),
        "https://example.com/" + "/".join(f"Part{number}.html" for number in range(60)), "Plain words 123. " * 60,
    ],
)  # fmt: skip
def test_text_that_resembles_base64_is_kept(text: str) -> None:
    """Hexadecimal numbers, lists of ids, URLs and prose are text."""
    assert FileSender().without_binaries({"a": [text]}) == {"a": [text]}


@pytest.mark.parametrize(
    ("uri", "kind", "name"),
    [
        ("file:///a/My%20Report", "application/pdf", "My Report.pdf"),
        ("file:///a/b.tar.gz", "application/gzip", "b.tar.gz"),
        ("memo://voice", "audio/wav", "file.wav"), ("memo://x/voice", "audio/ogg", "voice.ogg"),
        ("memo://x/..%2F..%2Fetc", "text/csv; charset=utf-8", "etc.csv"), ("memo://x/odd", "x/unknown", "odd"),
    ],
)  # fmt: skip
def test_file_gets_the_extension_of_its_type(uri: str, kind: str, name: str) -> None:
    """Platforms and tools go by the extension, so the server's name is corrected."""
    blob = base64.b64encode(b"not much").decode()
    resource = EmbeddedResource(
        type="resource", resource=BlobResourceContents(uri=uri, mime_type=kind, blob=blob)
    )
    with collect_artifacts() as files:
        told = value_of(CallToolResult(content=[resource]))
    assert [file.filename for file in files] == [name]
    assert f"(handed to the user: {name}, " in told


def test_base64_in_an_error_is_removed() -> None:
    """The error gives its size, and no file is sent."""
    data = base64.b64encode(IMAGE).decode()
    texts = [TextContent(type="text", text=f"It broke: {data}")]
    with collect_artifacts() as files:
        told = error_text(CallToolResult(content=list(texts), is_error=True), ())
        held = error_text(
            CallToolResult(content=[], structured_content={"screen": data}, is_error=True), ()
        )
    assert told == f"It broke: (binary data, {len(IMAGE)} bytes, is left out)"
    assert data[:40] not in held
    assert files == []


def test_base64_in_lines_is_detected() -> None:
    """Mail and PEM use lines; for an unknown type only the size is given."""
    lines = base64.encodebytes(bytes(range(256)) * 3).decode()
    assert (
        FileSender().without_binaries(f"file:\n{lines}")
        == "file:\n(binary data, 768 bytes, is left out)\n"
    )


@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_cursor_and_signed_url_reach_the_model(encode) -> None:
    """A model can ask for the next page; longer data of unknown type is left out."""
    cursor = encode(json.dumps({"next": "Item 17", "filter": "x" * 400}).encode()).decode()
    result = {"next": cursor, "url": f"https://e.org/a?X-Amz-Security-Token={cursor}&b=1"}
    assert FileSender().without_binaries(result) == result
    long = encode(json.dumps({"next": "Item 17" * MAX_CURSOR_CHARS}).encode()).decode()
    assert "is left out" in FileSender().without_binaries(long)


def file_block(data: bytes) -> EmbeddedResource:
    """Return a file in a result."""
    blob = base64.b64encode(data).decode()
    resource = BlobResourceContents(uri="memo://x/a.bin", mime_type="x/unknown", blob=blob)
    return EmbeddedResource(type="resource", resource=resource)


@pytest.mark.parametrize(
    "encode",
    [
        base64.b64encode, base64.encodebytes, base64.urlsafe_b64encode,
        lambda data: base64.urlsafe_b64encode(data).rstrip(b"="),
    ],
)  # fmt: skip
def test_file_in_any_form_of_base64_reaches_the_user(encode) -> None:
    """Line breaks, the URL-safe alphabet and missing padding lose no file."""
    data = bytes(range(256)) * 2
    resource = BlobResourceContents(uri="memo://x/a.bin", blob=encode(data).decode())
    with collect_artifacts() as files:
        value_of(CallToolResult(content=[EmbeddedResource(type="resource", resource=resource)]))
    assert [file.data for file in files] == [data]


def test_file_that_is_no_base64_is_reported_to_the_model() -> None:
    """Nothing is sent."""
    resource = BlobResourceContents(uri="memo://x/a.bin", blob="a")
    with collect_artifacts() as files:
        told = value_of(
            CallToolResult(content=[EmbeddedResource(type="resource", resource=resource)])
        )
    assert files == []
    assert "is no base64" in told


def test_files_beyond_the_limit_are_counted_for_the_model() -> None:
    """It must not tell the user that all files were sent."""
    blocks = [file_block(b"file %d" % number) for number in range(MAX_FILES + 2)]
    with collect_artifacts() as files:
        told = value_of(CallToolResult(content=list(blocks)))
    assert len(files) == MAX_FILES
    assert told.endswith("(handed to the user: nothing: 2 more files are left out)")


def test_file_that_is_too_large_does_not_fail_the_call(monkeypatch) -> None:
    """The call has taken effect, so its text and a note of the file are its result."""
    monkeypatch.setattr("sayso.agent.tools.environment.MAX_ARTIFACT_BYTES", 5)
    text = TextContent(type="text", text="Paid.")
    with collect_artifacts() as files:
        told = value_of(CallToolResult(content=[text, file_block(b"123456")]))
    assert files == []
    assert told.startswith("Paid.\n(handed to the user: nothing: ")


def test_links_beside_structured_content_reach_the_model():
    """Servers repeat text in their structured content, but not always what they link to."""
    links = [
        ResourceLink(type="resource_link", name=name, uri=f"https://e.org/{name}")
        for name in ("report", "known")
    ]
    structured = {"rows": 3, "source": "https://e.org/known"}
    told = value_of(CallToolResult(content=links, structured_content=structured))
    assert told == '{"rows": 3, "source": "https://e.org/known"}\nreport: https://e.org/report'
