"""LocalMediaStore: which files are stored, and which links open them."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

import pytest

from sayso.channels.inbound_limits import MAX_FILE_BYTES
from sayso.channels.media_store import (
    KEEP_SECONDS,
    LEEWAY_SECONDS,
    MAX_LINK_SECONDS,
    UNKNOWN_TYPE,
    BadToken,
    LocalMediaStore,
    MediaGone,
    MediaLimits,
    NoRoom,
    QuotaExceeded,
    TooLarge,
    settle_type,
)
from sayso.channels.types import owner_of
from sayso.infra.storage.objects import DATE_SECONDS

PNG = b"\x89PNG\r\n\x1a\n" + b"0" * 32
OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
DOCX = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"


class Clock:
    """A clock that the test moves."""

    now = 1_800_000_000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


@pytest.fixture
def clock() -> Clock:
    """Return the store's clock."""
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> LocalMediaStore:
    """Return a store in a folder that does not exist yet."""
    return LocalMediaStore(
        tmp_path / "media", keys=["k1"], public_url="https://bot.example/", clock=clock
    )


def token(url: str) -> str:
    """Return the token at the end of a link."""
    assert url.startswith("https://bot.example/media/")
    return url.rpartition("/")[2]


def link(store: LocalMediaStore) -> str:
    """Store a picture; return the token of its link."""
    media = store.put(PNG, mime_type="image/png", filename="a.png")
    return token(store.url(media.ref, filename=media.filename, mime_type=media.mime_type))


@pytest.mark.parametrize(
    "ref", ["../../etc/passwd", "", "a" * 63, "A" * 64, "/" + "a" * 63, "a" * 64 + "\n", "g" * 64]
)
def test_only_a_valid_reference_reads_a_file(store: LocalMediaStore, ref: str):
    """A reference is 64 hex digits, so no path leaves the folder."""
    with pytest.raises(KeyError):
        store.read(ref)


def test_a_forged_link_is_bad(store: LocalMediaStore, tmp_path: Path):
    """A link with another signature, or with one changed character, opens no file."""
    stranger = LocalMediaStore(tmp_path / "media", keys=["other"], public_url="https://bot.example")
    good = link(store)
    changed = ("A" if good[0] != "A" else "B") + good[1:]
    for bad in (link(stranger), changed, "", "x", "a.b.c", good + "x"):
        with pytest.raises(BadToken):
            store.open_token(bad)


def test_an_expired_link_is_gone(store: LocalMediaStore, clock: Clock):
    """A link expires within the hour."""
    old = link(store)
    clock.now += MAX_LINK_SECONDS
    store.open_token(old)
    clock.now += 1
    with pytest.raises(MediaGone, match="expired"):
        store.open_token(old)


def test_a_link_to_a_removed_file_is_gone(store: LocalMediaStore, tmp_path: Path):
    """Old files may be removed at any time."""
    good = link(store)
    ref = store.open_token(good).ref
    (tmp_path / "media" / ref[:2] / ref).unlink()
    with pytest.raises(MediaGone, match="removed"):
        store.open_token(good)
    with pytest.raises(KeyError):
        store.read(ref)


def test_a_file_that_is_too_large_is_refused(store: LocalMediaStore, tmp_path: Path):
    """No part of it is stored."""
    with pytest.raises(TooLarge, match="26214401"):
        store.put(bytes(MAX_FILE_BYTES + 1), mime_type="video/mp4", filename="film.mp4")
    assert not list(tmp_path.rglob("*"))


def test_a_failed_write_leaves_no_file(
    store: LocalMediaStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A full disk leaves no half files."""

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        store.put(PNG, mime_type="image/png", filename="a.png")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("data", "declared"),
    [
        (b"<svg onload=alert(1)>", "image/svg+xml"),
        (b"<script>alert(1)</script>", "text/html"),
        (b"<script>alert(1)</script>", "image/png"),
        (b"MZ\x90\x00", "text/plain"),
        (b"MZ\x90\x00", "application/pdf"),
        (b"", "image/gif"),
        (b"alert(1)", "text/javascript"),
        (b"a", "text/csv\r\nSet-Cookie: x"),
    ],
)
def test_bytes_of_an_unknown_type_are_only_downloaded(data: bytes, declared: str):
    """A declared type that the bytes do not confirm, or that could run code, is not used."""
    assert settle_type(data, declared) == UNKNOWN_TYPE


@pytest.mark.parametrize(
    ("data", "declared", "settled"),
    [
        (PNG, "image/jpeg", "image/png"),
        (PNG, "text/html", "image/png"),
        (PNG, "", "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg", "image/jpeg"),
        (b"GIF89a", "image/gif", "image/gif"),
        (b"RIFF0000WEBPVP8 ", "image/webp", "image/webp"),
        (b"%PDF-1.7", "application/octet-stream", "application/pdf"),
        (b"OggS\0", "audio/ogg; codecs=opus", "audio/ogg"),
        (b"OggS\0", "text/html", "audio/ogg"),
        (b"\xff\xf1\x50\x80", "audio/aac", "audio/aac"),
        (b"\xff\xf9\x50\x80", "audio/mpeg", "audio/aac"),
        (b"\0\0\0\x18ftypM4A ", "audio/mp4", "audio/mp4"),
        (b"\0\0\0\x18ftypisom", "image/png", "video/mp4"),
        (b"PK\x03\x04", DOCX, DOCX),
        (OLE, "application/msword", "application/msword"),
        (OLE, "application/vnd.ms-excel", "application/vnd.ms-excel"),
        (OLE, "application/x-msi", UNKNOWN_TYPE),
        (b"PK\x03\x04", "text/html", "application/zip"),
        (
            b"PK\x03\x04",
            "application/vnd.openxmlformats-officedocument.\r\nX: y",
            "application/zip",
        ),
        (b"a,b\n1,2\n", "text/csv; charset=utf-8", "text/csv"),
        (b"plain", "TEXT/PLAIN", "text/plain"),
    ],
)
def test_the_bytes_decide_the_type(data: bytes, declared: str, settled: str):
    """The content counts more than the name."""
    assert settle_type(data, declared) == settled


@pytest.mark.parametrize(
    ("given", "label"),
    [
        ("../../etc/passwd", "passwd"),
        ("C:\\temp\\a.png", "a.png"),
        ("a\r\nSet-Cookie: x.png", "aSet-Cookie: x.png"),
        ("\u202egnp.exe", "gnp.exe"),
        ("Rechnung März.pdf", "Rechnung März.pdf"),
        ("Screenshot at 5.00\u202fPM.png", "Screenshot at 5.00 PM.png"),
        ("x" * 300 + ".png", "x" * 116 + ".png"),
        (
            "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645.png",
            "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645.png",
        ),
        ("👨\u200d👩\u200d👧.png", "👨\u200d👩\u200d👧.png"),
        ("a\0b\u2028c.png", "abc.png"),
        ("%2e%2e%2fa;b.png", "%2e%2e%2fa;b.png"),
        ("", ""),
    ],
)
def test_a_file_name_is_only_a_label(store: LocalMediaStore, given: str, label: str):
    """It cannot name a folder, break a header or hide an extension."""
    assert store.put(PNG, mime_type="image/png", filename=given).filename == label


def test_bytes_come_back_under_their_digest(store: LocalMediaStore):
    """The reference is the SHA-256 of the content."""
    media = store.put(PNG, mime_type="image/png", filename="a.png")
    assert (media.ref, media.size, media.stored) == (
        hashlib.sha256(PNG).hexdigest(),
        len(PNG),
        True,
    )
    assert store.read(media.ref) == PNG


def test_the_same_bytes_are_stored_once(store: LocalMediaStore, tmp_path: Path):
    """Two names share one file."""
    refs = {store.put(PNG, mime_type="image/png", filename=name).ref for name in ("a.png", "b.png")}
    assert len(refs) == 1
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 1


def test_a_link_opens_its_file(store: LocalMediaStore):
    """The link yields reference, size, type and name."""
    ref, *facts = store.open_token(link(store))
    assert (store.read(ref), facts) == (PNG, [len(PNG), "image/png", "a.png"])


def test_two_links_to_one_file_differ(store: LocalMediaStore):
    """A person who knows the content cannot guess the link."""
    assert link(store) != link(store)


def test_links_work_although_clocks_differ_a_little(tmp_path: Path, clock: Clock):
    """Links of a worker that is seconds ahead of the web work at once; one from the far future does not."""
    ahead = Clock()

    def store(of: Clock) -> LocalMediaStore:
        return LocalMediaStore(
            tmp_path, keys=["k"], public_url="https://bot.example", link_clock=of
        )

    media = store(ahead).put(b"a,b", mime_type="text/csv")
    for seconds, is_good in ((2, True), (LEEWAY_SECONDS, True), (LEEWAY_SECONDS + 1, False)):
        ahead.now = clock.now + seconds
        token = (
            store(ahead).url(media.ref, filename="a.csv", mime_type="text/csv").rpartition("/")[2]
        )
        with contextlib.nullcontext() if is_good else pytest.raises(MediaGone):
            store(clock).open_token(token)


def test_the_first_key_signs_and_all_keys_open(tmp_path: Path, clock: Clock):
    """A key can be retired without breaking links in use."""
    old, new, both = (
        LocalMediaStore(tmp_path, keys=keys, public_url="https://bot.example", clock=clock)
        for keys in (["old"], ["new"], ["new", "old"])
    )
    assert both.open_token(link(old))
    assert new.open_token(link(both))


def test_missing_keys_are_refused(tmp_path: Path):
    """Links are always signed."""
    with pytest.raises(ValueError, match="keys is empty"):
        LocalMediaStore(tmp_path, keys=[], public_url="https://bot.example")


def test_old_files_are_removed_and_new_ones_stay(
    store: LocalMediaStore, tmp_path: Path, clock: Clock
):
    """A file goes a week after it was last stored."""
    old, young = store.put(PNG, mime_type="image/png"), store.put(PNG + b"1", mime_type="image/png")
    for media, age in (
        (old, KEEP_SECONDS + DATE_SECONDS + 1),
        (young, KEEP_SECONDS + DATE_SECONDS - 1),
    ):
        os.utime(tmp_path / "media" / media.ref[:2] / media.ref, (0, clock.now - age))
    assert store.sweep() == 1
    assert store.read(young.ref)
    with pytest.raises(KeyError):
        store.read(old.ref)


ANA, BOB = owner_of("tg", "ana"), owner_of("tg", "bob")


def limited(folder: Path, **limits: float) -> LocalMediaStore:
    """Return a store with only these limits."""
    none = {
        "per_person_bytes": 2**40,
        "total_bytes": 2**40,
        "reserve_bytes": 0,
        "reserve_percent": 0.0,
    }
    rules = MediaLimits(**{**none, **limits})  # type: ignore[arg-type]
    return LocalMediaStore(folder, keys=["k1"], public_url="https://bot.example", limits=rules)


def fill(store: LocalMediaStore, owner: str, files: int, first: int = 0) -> None:
    """Store this many different files of 5,000 bytes."""
    for number in range(first, first + files):
        store.put(f"{owner} {number}".encode().ljust(5000), mime_type="text/plain", owner=owner)


def test_one_person_cannot_use_the_room_of_others(tmp_path: Path):
    """A person's quota refuses their next file. A repeated file does not count, and others are not affected."""
    store = limited(tmp_path, per_person_bytes=20_000)
    fill(store, ANA, 4)
    with pytest.raises(QuotaExceeded, match="20000"):
        fill(store, ANA, 1, first=4)
    fill(store, ANA, 0)
    fill(store, BOB, 4)


def test_tiny_files_count_with_their_size_on_disk(tmp_path: Path):
    """A byte takes a block, so a quota also bounds the number of files."""
    store = limited(tmp_path, per_person_bytes=9000)
    for data in (b"a", b"b"):
        store.put(data, mime_type="text/plain", owner=ANA)
    with pytest.raises(QuotaExceeded):
        store.put(b"c", mime_type="text/plain", owner=ANA)


def test_all_people_together_have_a_limit(tmp_path: Path):
    """Files of other processes count too."""
    fill(limited(tmp_path), ANA, 4)
    with pytest.raises(NoRoom, match="20000 bytes"):
        fill(limited(tmp_path, total_bytes=22_000), BOB, 1)


@pytest.mark.parametrize("reserve", [{"reserve_bytes": 2**60}, {"reserve_percent": 99.99}])
def test_a_reserve_of_the_disk_stays_free(tmp_path: Path, reserve: dict[str, float]):
    """Redis and the ledger need it. The refused file leaves no bytes."""
    with pytest.raises(NoRoom, match="stay free"):
        fill(limited(tmp_path, **reserve), ANA, 1)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_erasing_a_person_leaves_files_that_another_sent_too(tmp_path: Path):
    """Two people may send the same picture."""
    store = limited(tmp_path)
    for owner in (ANA, BOB):
        shared = store.put(PNG, mime_type="image/png", owner=owner)
    own = store.put(PNG + b"1", mime_type="image/png", owner=ANA)
    assert (store.erase(ANA), store.erase(ANA), store.read(shared.ref)) == (1, 0, PNG)
    with pytest.raises(KeyError):
        store.read(own.ref)
    assert store.erase(BOB) == 1
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
