"""Media links: valid ones work until they expire, and a served file can run no code."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from sayso.channels.media_store import MediaFiles
from sayso.channels.web.app import MAX_DOWNLOADS
from sayso.infra.ids import random_id
from sayso.infra.storage.objects import LocalObjects, ObjectStore
from sayso.infra.storage.s3 import Bucket
from tests.channels.web.services import browser
from tests.s3 import BUCKET, S3Server

PNG = b"\x89PNG\r\n\x1a\n" + bytes(100)


class Shelf:
    """A media store with a clock that the test moves, and a client in front of it."""

    def __init__(self, files: ObjectStore, marks: ObjectStore, folder: Path) -> None:
        self.now = 1_000_000.0
        self.files = files
        self.store = MediaFiles(
            files,
            marks,
            folder / "arriving",
            keys=["key"],
            public_url="https://bots",
            clock=lambda: self.now,
        )
        self.client: FlaskClient = browser(media=self.store)

    def link(self, data: bytes, mime_type: str, filename: str) -> str:
        """Store a file; return the path of its link."""
        media = self.store.put(data, mime_type=mime_type, filename=filename)
        url = self.store.url(media.ref, filename=filename, mime_type=media.mime_type)
        return url.removeprefix("https://bots")


@pytest.fixture(params=["folder", "bucket"])
def shelf(request: pytest.FixtureRequest, tmp_path: Path) -> Shelf:
    """Return an empty store, in a folder and in a bucket of a real S3 server."""
    if request.param == "folder":
        return Shelf(LocalObjects(tmp_path / "media"), LocalObjects(tmp_path / "owners"), tmp_path)
    server: S3Server = request.getfixturevalue("s3_server")
    os.environ.update(server.environ())
    bucket = Bucket(f"s3://{BUCKET}/{random_id(6)}", endpoint=server.endpoint, region="us-east-1")
    return Shelf(bucket.objects("media"), bucket.objects("owners"), tmp_path)


def test_expired_link_is_gone(shelf: Shelf):
    """The answer 410 tells that it was valid once."""
    link = shelf.link(PNG, "image/png", "a.png")
    shelf.now += 3601
    assert shelf.client.get(link).status_code == 410


def test_removed_file_is_gone(shelf: Shelf):
    """The link is valid, but the file is gone."""
    link = shelf.link(PNG, "image/png", "a.png")
    shelf.files.delete([each.name for each in shelf.files.list()])
    assert shelf.client.get(link).status_code == 410


@pytest.mark.parametrize("token", ["x", "../../etc/passwd", "%00", "a.b.c", "x" * 5000])
def test_forged_link_is_not_found(shelf: Shelf, token: str):
    """The answer is 404 for a link that was never signed."""
    assert shelf.client.get(f"/media/{token}").status_code == 404


def test_changed_link_is_not_found(shelf: Shelf):
    """One changed character breaks the signature."""
    link = shelf.link(PNG, "image/png", "a.png")
    changed = link[:-1] + ("A" if link[-1] != "A" else "B")
    assert (
        shelf.client.get(
            changed[:10] + ("A" if changed[10] != "A" else "B") + changed[11:]
        ).status_code
        == 404
    )


def test_picture_is_shown_and_can_run_no_code(shelf: Shelf):
    """The type comes from the store, browsers may not guess another, and scripts are off."""
    answer = shelf.client.get(shelf.link(PNG, "image/png", "a.png"))
    assert (answer.status_code, answer.data, answer.mimetype) == (200, PNG, "image/png")
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Content-Security-Policy"] == "default-src 'none'; sandbox"
    assert not answer.headers.get("Content-Disposition", "").startswith("attachment")


def test_html_page_is_downloaded_and_never_shown(shelf: Shelf):
    """A user's HTML does not open under the bot's address."""
    answer = shelf.client.get(shelf.link(b"<script>1</script>", "text/html", 'a"\r\nb.html'))
    assert answer.mimetype == "application/octet-stream"
    assert answer.headers["Content-Disposition"].startswith("attachment")
    assert "\n" not in answer.headers["Content-Disposition"]


def test_part_of_a_file_can_be_asked_for(shelf: Shelf):
    """Players seek. Ranges beyond the end are refused."""
    link = shelf.link(PNG, "image/png", "a.png")
    part = shelf.client.get(link, headers={"Range": "bytes=0-7"})
    assert (part.status_code, part.data, part.headers["Content-Range"]) == (
        206,
        PNG[:8],
        f"bytes 0-7/{len(PNG)}",
    )
    assert part.headers["X-Content-Type-Options"] == "nosniff"
    assert shelf.client.get(link, headers={"Range": "bytes=9999-"}).status_code == 416


@pytest.mark.parametrize(
    "asked",
    [
        "bytes=0-7,10-12",
        "bytes=-99999",
        "items=0-3",
        "bytes=abc",
        "bytes=5-2",
        "bytes=--1",
        "bytes=-0",
        "bytes=",
        "0-7",
        "bytes=0-0" * 500,
    ],
)
def test_unsupported_range_gets_the_whole_file(shelf: Shelf, asked: str):
    """RFC 9110, 14.2: several ranges, a suffix longer than the file, and invalid ones are no errors."""
    answer = shelf.client.get(shelf.link(PNG, "image/png", "a.png"), headers={"Range": asked})
    assert (answer.status_code, answer.data) == (200, PNG)


@pytest.mark.parametrize(
    ("asked", "part"),
    [
        ("bytes=-5", PNG[-5:]),
        ("bytes=100-", PNG[100:]),
        ("bytes=0-999999", PNG),
        ("BYTES=0-0", PNG[:1]),
    ],
)
def test_a_range_is_served_from_either_end(shelf: Shelf, asked: str, part: bytes):
    """Players and PDF readers ask so."""
    answer = shelf.client.get(shelf.link(PNG, "image/png", "a.png"), headers={"Range": asked})
    assert (answer.status_code, answer.data) == (206, part)


@pytest.mark.parametrize("asked", ["bytes=108-", "bytes=99999999999999999999-"])
def test_range_beyond_the_end_is_refused(shelf: Shelf, asked: str):
    """The answer names the size."""
    answer = shelf.client.get(shelf.link(PNG, "image/png", "a.png"), headers={"Range": asked})
    assert (answer.status_code, answer.headers["Content-Range"]) == (416, f"bytes */{len(PNG)}")


def test_download_goes_on_although_the_file_was_stored_again(shelf: Shelf):
    """The ETag depends on the content, and no header tells when others sent the same file."""
    first = shelf.client.get(shelf.link(PNG, "image/png", "a.png"))
    again = shelf.link(PNG, "image/png", "a.png")
    rest = shelf.client.get(
        again, headers={"Range": "bytes=100-", "If-Range": first.headers["ETag"]}
    )
    assert (rest.status_code, rest.data) == (206, PNG[100:])
    assert "Last-Modified" not in rest.headers
    other = shelf.client.get(again, headers={"Range": "bytes=100-", "If-Range": '"other"'})
    assert (other.status_code, other.data) == (200, PNG)


def test_head_request_has_no_body(shelf: Shelf):
    """It has the size and type of the file."""
    head = shelf.client.head(shelf.link(PNG, "image/png", "a.png"))
    assert (head.status_code, head.data, head.headers["Content-Length"]) == (
        200,
        b"",
        str(len(PNG)),
    )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ('a"b.pdf', 'attachment; filename="a\\"b.pdf"'),
        ("ü.pdf", "attachment; filename=u.pdf; filename*=UTF-8''%C3%BC.pdf"),
        ("résumé", "attachment; filename=resume; filename*=UTF-8''r%C3%A9sum%C3%A9"),
        ("отчёт", "attachment; filename=file; filename*=UTF-8''%D0%BE%D1%82%D1%87%D1%91%D1%82"),
        (
            "Отчёт.pdf",
            "attachment; filename=file.pdf; filename*=UTF-8''%D0%9E%D1%82%D1%87%D1%91%D1%82.pdf",
        ),
        ("x;filename=evil.exe", 'attachment; filename="x;filename=evil.exe"'),
        ("a\u202efdp.exe", "attachment; filename=afdp.exe"),
        ("", "attachment; filename=file"),
    ],
)
def test_any_filename_is_kept(shelf: Shelf, name: str, said: str):
    """It may have quotes, other alphabets and other directions."""
    answer = shelf.client.get(shelf.link(b"%PDF-1.4", "application/pdf", name))
    assert answer.headers["Content-Disposition"] == said


@pytest.mark.parametrize(
    "asked",
    [
        {"If-Modified-Since": "Fri, 01 Jan 2100 00:00:00 GMT"},
        {"If-Unmodified-Since": "Thu, 01 Jan 1970 00:00:00 GMT"},
        {"Range": "bytes=0-7", "If-Range": "Fri, 01 Jan 2100 00:00:00 GMT"},
        {"Range": "bytes=0-7", "If-Range": "Fri, 01 Jan 99999999999999999999 00:00:00 GMT"},
        {"If-Modified-Since": "Fri, 01 Jan 99999999999999999999 00:00:00 GMT"},
    ],
)
def test_date_conditions_do_not_tell_when_others_stored_the_same(
    shelf: Shelf, asked: dict[str, str]
):
    """No answer has a date, so a conditional request with a date gets the whole file."""
    answer = shelf.client.get(shelf.link(PNG, "image/png", "a.png"), headers=asked)
    assert (answer.status_code, answer.data) == (200, PNG)


def test_every_kind_of_answer_frees_its_download_slot(shelf: Shelf):
    """The number of downloads at a time is limited. More requests than that, one after the other, are all answered."""
    link = shelf.link(PNG, "image/png", "a.png")
    tag = shelf.client.head(link).headers["ETag"]
    asked = [
        ({}, 200),
        ({"Range": "bytes=9999-"}, 416),
        ({"Range": "bytes=1-2"}, 206),
        ({"If-None-Match": tag}, 304),
    ]
    for _ in range(MAX_DOWNLOADS + 1):
        for headers, status in asked:
            assert shelf.client.get(link, headers=headers, buffered=True).status_code == status
        assert shelf.client.head(link, buffered=True).status_code == 200
        assert shelf.client.get("/media/forged", buffered=True).status_code == 404


def test_bucket_that_does_not_answer_gives_503(tmp_path: Path):
    """The platform asks again later. No log line contains an address or a key."""
    os.environ.update(AWS_ACCESS_KEY_ID="k", AWS_SECRET_ACCESS_KEY="a-secret")
    bucket = Bucket("s3://files", endpoint="http://127.0.0.1:1", region="us-east-1")
    shelf = Shelf(bucket.objects("media"), bucket.objects("owners"), tmp_path)
    answer = shelf.client.get(
        shelf.store.url("a" * 64, filename="a", mime_type="image/png").removeprefix("https://bots")
    )
    assert (answer.status_code, answer.text) == (503, "the store of files is away, try again\n")
    assert answer.headers["Retry-After"]
