"""Files sent from the console's page: which requests may upload, which files are accepted, and how turns carry them."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from sayso.agent import Agent, AgentConfig, ScriptedProvider, ToolCall, tool
from sayso.agent.channel.channel_agent import ChannelAgent
from sayso.channels.base import BadHook, FetchError, Forbidden
from sayso.channels.console.adapter import ConsoleChannel
from sayso.channels.console.incoming import NotTaken
from sayso.channels.inbound_limits import MAX_MESSAGE_FILES
from sayso.channels.media_store import LocalMediaStore
from sayso.channels.types import Media
from sayso.pending import InMemoryPendingStore
from tests.channels.console.large_upload import SIZE, upload_and_print_peak
from tests.channels.harness import fetch_bytes
from tests.channels.parts import console_channel
from tests.config.processes import forked
from tests.memory_stores import MemoryFeed

from .echo import KEYS, EchoApp
from .test_channel import PNG, hook

PAGE = {"X-Sayso-Console": "1"}


def upload(
    client: Any, data: bytes = PNG, kind: str = "image/png", name: str = "a.png", **headers: str
) -> Any:
    """Upload a file as the page does."""
    given = {**PAGE, "X-Sayso-Filename": quote(name), "Content-Type": kind, **headers}
    return client.post(
        "/console/web/files", data=data, headers={k: v for k, v in given.items() if v}
    )


def say(client: Any, text: str, *answers: Any, event: str = "e1") -> Any:
    """Post the message that names the uploaded files."""
    body = {"id": event, "text": text, "files": [answer.json["file"] for answer in answers]}
    return client.post("/hooks/web", json=body, headers=PAGE)


def names(channel: ConsoleChannel, session: str, *files: tuple[bytes, str, str]) -> list[str]:
    """Keep files for this session's user and return their names for a message."""
    return [channel.files.save(channel.sessions.user_of(session), *file)[0] for file in files]


def test_caption_that_says_yes_decides_nothing(channel: ConsoleChannel):
    """A yes beside a picture or any other file confirms nothing."""
    session = channel.sessions.new_identity()
    body = {
        "id": "e1",
        "text": "yes",
        "files": names(channel, session, (PNG, "image/png", "a.png")),
    }
    (turn,) = channel.receive(
        hook(channel, body, cookie=f"{channel.sessions.cookie}={session}")
    ).turns
    assert (turn.text, turn.decides) == ("yes", False)


def test_yes_beside_a_picture_runs_nothing(channel: ConsoleChannel):
    """The picture drops the pending action like any other message, so a later plain yes finds none."""
    deleted: list[str] = []

    @tool(requires_approval=True, preview="Delete {name}")
    def delete(name: str) -> str:
        """Delete a thing."""
        deleted.append(name)
        return f"deleted {name}"

    model = ScriptedProvider(
        [ToolCall("delete", {"name": "A"}, "c1"), "A fine picture.", "Yes what?"]
    )
    agent = ChannelAgent(Agent([delete], model, AgentConfig(max_retries=0)), InMemoryPendingStore())
    session, said = channel.sessions.new_identity(), []
    files = names(channel, session, (PNG, "image/png", "a.png"))
    for number, body in enumerate(
        ({"text": "delete A"}, {"text": "yes", "files": files}, {"text": "yes"})
    ):
        posted = hook(
            channel, {"id": f"e{number}", **body}, cookie=f"{channel.sessions.cookie}={session}"
        )
        said += [reply.text for reply in asyncio.run(agent.take(channel.receive(posted).turns[0]))]
    assert "Delete A" in said[0]
    assert "A fine picture." in said[1]
    assert deleted == []


def test_file_of_another_user_cannot_be_sent(channel: ConsoleChannel):
    """The name of a file works for its own uploader alone."""
    mine, yours = channel.sessions.new_identity(), channel.sessions.new_identity()
    body = {"id": "e1", "text": "", "files": names(channel, mine, (PNG, "image/png", "a.png"))}
    with pytest.raises(BadHook, match="another user"):
        channel.receive(hook(channel, body, cookie=f"{channel.sessions.cookie}={yours}"))


@pytest.mark.parametrize(
    "files", [["x"], [5], "x", {}, None, ["a.b"], ["\ud800"], ["x"] * (MAX_MESSAGE_FILES + 1)]
)
def test_unknown_file_name_is_a_bad_hook(channel: ConsoleChannel, files: Any):
    """The hook accepts no path, no id of the store and no invented name."""
    with pytest.raises(BadHook, match="files"):
        channel.receive(hook(channel, {"id": "e1", "text": "hi", "files": files}))


def test_tap_with_files_is_a_bad_hook(channel: ConsoleChannel):
    """A tap carries only the data of its button."""
    with pytest.raises(BadHook):
        channel.receive(hook(channel, {"id": "e1", "tap": "c:1", "files": []}))


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"X-Sayso-Console": ""}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "evil.example"}, 403),
        ({"X-Forwarded-For": "203.0.113.9"}, 403),
    ],
)
def test_another_site_cannot_upload(
    browser, media: LocalMediaStore, headers: dict[str, str], status: int
):
    """The upload passes the same checks as a message before a byte is stored."""
    assert upload(browser, **headers).status_code == status
    assert not any(path.is_file() for path in media.spool_folder.parent.rglob("*"))


def test_upload_without_a_session_is_forbidden(echo: EchoApp):
    """A client that has not opened the page has no session."""
    assert upload(echo.app.test_client()).status_code == 403


def test_upload_needs_the_password(feed: MemoryFeed, media: LocalMediaStore):
    """A console with a password refuses an upload before the login."""
    channel = console_channel("web", feed=feed, media=media, keys=KEYS, password="sesame")
    client = EchoApp(channel, media=media).app.test_client()
    client.get("/console")
    assert upload(client).status_code == 401
    client.post("/console/web/login", data={"password": "sesame"})
    assert upload(client).status_code == 201


def test_picture_is_a_turn_and_stays_in_the_conversation(
    browser, echo: EchoApp, channel: ConsoleChannel
):
    """The turn has picture and caption; the worker fetches the bytes, and the page shows a link that works."""
    assert say(browser, "look", upload(browser, name="Urlaub/ü \u202egnp.png")).status_code == 200
    (turn,) = echo.turns
    (media,) = turn.media
    assert (turn.text, media.mime_type, media.filename, media.size) == (
        "look",
        "image/png",
        "ü gnp.png",
        len(PNG),
    )
    assert fetch_bytes(channel, media) == PNG
    said = browser.get("/console/poll").json["entries"][0]
    assert (said["type"], said["text"], said["files"][0]["mime"]) == ("user", "look", "image/png")
    assert browser.get(said["files"][0]["url"]).data == PNG


def test_file_needs_no_text(browser, echo: EchoApp):
    """Several files arrive in the order in which they were picked."""
    files = upload(browser), upload(browser, b"%PDF-1.4", "application/pdf", "b.pdf")
    assert say(browser, "", *files).status_code == 200
    assert [media.kind for media in echo.turns[0].media] == ["image", "application"]


@pytest.mark.parametrize(
    ("data", "declared", "name", "kind"),
    [
        (PNG, "text/html", "a.html", "image/png"),
        (b"a,b\n1,2\n", "application/vnd.ms-excel", "a.csv", "text/csv"),
        (b"# hi", "", "README.md", "text/markdown"),
        (b"hi", "text/plain; charset=utf-8", "a", "text/plain"),
        (b"\x1aE\xdf\xa3" + b"0" * 8, "audio/webm;codecs=opus", "voice.webm", "audio/webm"),
        (b"\0\0\0\x18ftypheic0000", "image/heic", "IMG_1.HEIC", "image/heic"),
        (b"\0\0\0\x18ftypmp420000", "video/mp4", "a.mp4", "video/mp4"),
    ],
)
def test_type_of_a_file_is_read_from_its_bytes(
    channel: ConsoleChannel, data: bytes, declared: str, name: str, kind: str
):
    """The bytes win over the type that the browser declares."""
    assert channel.files.save("u1", data, declared, name)[1].mime_type == kind


@pytest.mark.parametrize(
    ("data", "declared", "name"),
    [
        (b"<script>1</script>", "text/html", "a.html"),
        (b"<svg onload=1>", "image/svg+xml", "a.svg"),
        (b"MZ\x90\0", "application/pdf", "bill.pdf"),
        (b"\x7fELF\0", "text/plain", "a.txt.exe"),
        (b"a\0b", "text/plain", "a.txt"),
        (b"", "image/png", "a.png"),
    ],
)
def test_unsupported_file_is_refused_and_not_stored(
    browser, media: LocalMediaStore, data: bytes, declared: str, name: str
):
    """The answer says which files the bot accepts."""
    answer = upload(browser, data, declared, name)
    assert answer.status_code == 415
    assert "send a picture" in answer.text or "empty" in answer.text
    assert not any(path.is_file() for path in media.spool_folder.parent.rglob("*"))


@pytest.mark.parametrize("chunked", [False, True])
def test_file_over_the_limit_is_refused(browser, monkeypatch: pytest.MonkeyPatch, *, chunked: bool):
    """The limit also holds for an upload without a declared size."""
    monkeypatch.setattr("sayso.channels.console.views.MAX_FILE_BYTES", 100)
    length = {"CONTENT_LENGTH": "", "wsgi.input_terminated": True} if chunked else {}
    for size, status in ((100, 201), (101, 413)):
        data = PNG + b"0" * (size - len(PNG))
        answer = browser.post(
            "/console/web/files", input_stream=io.BytesIO(data), headers=PAGE,
            environ_overrides={"CONTENT_LENGTH": str(size), **length},
        )  # fmt: skip
        assert answer.status_code == status
    assert "at most" in answer.text


def test_form_is_not_a_file(browser):
    """A multipart form would be stored as if it were the file."""
    answer = browser.post(
        "/console/web/files", data={"file": (io.BytesIO(PNG), "a.png")}, headers=PAGE
    )
    assert answer.status_code == 415


def test_large_upload_is_never_whole_in_memory(tmp_path: Path):
    """Otherwise each thread of the web would keep as much memory as its largest upload needed."""
    code, output, errors = forked(upload_and_print_peak, str(tmp_path))
    assert code == 0, errors
    status, peak = map(int, output.split())
    assert (status, peak < SIZE // 4) == (201, True), peak


def test_uploads_leave_threads_for_webhooks(channel: ConsoleChannel, media: LocalMediaStore):
    """An upload above the limit of parallel uploads gets a 503."""
    client = EchoApp(channel, media=media, max_uploads=0).app.test_client()
    client.get("/console")
    assert upload(client).status_code == 503


def test_refused_user_cannot_upload(channel: ConsoleChannel, media: LocalMediaStore):
    """The access check runs before the file is read."""

    def nobody(_: Any) -> None:
        raise Forbidden("the bot takes no files of yours")

    client = EchoApp(channel, media=media, admit=nobody).app.test_client()
    client.get("/console")
    assert (upload(client).status_code, upload(client).text) == (
        403,
        "the bot takes no files of yours\n",
    )


def test_full_disk_is_a_503(
    channel: ConsoleChannel, media: LocalMediaStore, monkeypatch: pytest.MonkeyPatch
):
    """The answer hides the path, and the page may try again."""

    def put(*_: Any, **__: Any) -> Media:
        raise OSError(28, "No space left on device", "/secret/path")

    monkeypatch.setattr(media, "put", put)
    client = EchoApp(channel, media=media).app.test_client()
    client.get("/console")
    answer = upload(client)
    assert (answer.status_code, "secret" in answer.text) == (503, False)


def test_deleted_or_unknown_file_cannot_be_fetched(channel: ConsoleChannel):
    """An invented reference reaches no other file."""
    for ref in ("0" * 64, "../../etc/passwd", ""):
        with pytest.raises(FetchError, match="gone"):
            fetch_bytes(channel, Media(ref, "image/png"))


def test_lone_surrogate_in_a_file_name_is_no_error(channel: ConsoleChannel):
    """A header can contain what UTF-8 cannot encode."""
    with pytest.raises(NotTaken):
        channel.files.save("u1", b"MZ", "", "a\ud800.exe")
    assert channel.files.save("u1", PNG, "", "a\ufffd.png")[1].filename == "a\ufffd.png"
