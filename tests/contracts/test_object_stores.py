"""Object stores: one suite over a folder of this machine and a bucket of a real S3 server."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from sayso.agent.channel.long_texts import TextFiles
from sayso.channels.media_store import (
    KEEP_SECONDS,
    MediaFiles,
    MediaLimits,
    NoRoom,
    QuotaExceeded,
)
from sayso.channels.types import owner_of
from sayso.infra.ids import random_id
from sayso.infra.storage.objects import DATE_SECONDS, LocalObjects, ObjectStore, sweep
from sayso.infra.storage.s3 import Bucket
from tests.s3 import BUCKET, S3Server

NAME, OTHER = f"ab/{'a' * 64}", f"ac/{'b' * 64}"
ANA, BOB = owner_of("tg", "ana"), owner_of("tg", "bob")
WEEKS = KEEP_SECONDS + DATE_SECONDS + 60


class Stores:
    """Object stores of one kind, in one place that was empty."""

    def __init__(self, folder: Path, bucket: Bucket | None) -> None:
        self._folder, self._bucket = folder, bucket

    def open(self, name: str) -> ObjectStore:
        """Return the store of this name."""
        return self._bucket.objects(name) if self._bucket else LocalObjects(self._folder / name)

    def media(self, **limits: int) -> MediaFiles:
        """Return a media store as one process has it."""
        none = {
            "per_person_bytes": 2**40,
            "total_bytes": 2**40,
            "reserve_bytes": 0,
            "reserve_percent": 0,
        }
        arriving = self._folder / random_id(4) / "arriving"
        return MediaFiles(
            self.open("media"), self.open("owners"), arriving,
            keys=["k"], public_url="https://bot.example", limits=MediaLimits(**{**none, **limits}),
        )  # fmt: skip


@pytest.fixture(params=["folder", "bucket"])
def stores(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Stores:
    """Return the stores of each kind."""
    if request.param == "folder":
        return Stores(tmp_path, None)
    server: S3Server = request.getfixturevalue("s3_server")
    for name, value in server.environ().items():
        monkeypatch.setenv(name, value)
    return Stores(
        tmp_path,
        Bucket(f"s3://{BUCKET}/{random_id(6)}", endpoint=server.endpoint, region="us-east-1"),
    )


@pytest.fixture
def objects(stores: Stores) -> ObjectStore:
    """Return an empty store."""
    return stores.open("things")


def read(objects: ObjectStore, name: str, start: int = 0) -> bytes:
    """Return the bytes of an object."""
    with objects.open(name, start) as file:
        return file.read()


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "", "ab", "ab/../x", "ab/x/y", "AB/x", "/ab/x", "ab/x\n", "ab/ü"]
)
def test_only_a_valid_name_reaches_the_store(objects: ObjectStore, name: str):
    """No name leads out of the folder or the prefix."""
    for call in (
        objects.open,
        objects.stat,
        lambda each: objects.put(each, b""),
        lambda each: objects.delete([each]),
    ):
        with pytest.raises(KeyError):
            call(name)


def test_missing_object_is_a_key_error(objects: ObjectStore):
    """To delete a missing object is no error."""
    with pytest.raises(KeyError):
        objects.open(NAME)
    objects.delete([NAME, OTHER])
    assert (objects.stat(NAME), list(objects.list())) == (None, [])


def test_object_is_read_from_any_byte(objects: ObjectStore):
    """An object may be empty."""
    assert objects.put(NAME, b"0123456789") is True
    assert objects.put(OTHER, b"") is True
    assert (read(objects, NAME), read(objects, NAME, 7), read(objects, OTHER)) == (
        b"0123456789",
        b"789",
        b"",
    )
    stored = objects.stat(NAME)
    assert stored is not None
    assert (stored.name, stored.size) == (NAME, 10)
    assert abs(stored.modified_at - time.time()) < 60


def test_object_of_another_size_is_replaced(objects: ObjectStore):
    """A damaged object is repaired when it is stored again. An equal object counts as already stored."""
    objects.put(NAME, b"damaged")
    objects.put(NAME, b"mended, longer")
    assert read(objects, NAME) == b"mended, longer"
    assert objects.put(NAME, b"mended, longer") is False


def test_list_yields_the_objects_whose_names_begin_with_the_prefix(objects: ObjectStore):
    """The prefix may be part of a folder's name."""
    names = [f"ab/{end}" for end in ("one", "onetwo", "two")] + ["ac/one"]
    for name in names:
        objects.put(name, b"x")
    assert sorted(each.name for each in objects.list()) == names
    assert sorted(each.name for each in objects.list("ab/one")) == names[:2]
    objects.delete(names[1:])
    assert [each.name for each in objects.list("ab/")] == names[:1]


def test_large_file_is_stored_from_the_disk(objects: ObjectStore, tmp_path: Path):
    """It is uploaded in parts, and none is missing."""
    file = tmp_path / "film"
    file.write_bytes(data := os.urandom(12 * 1024 * 1024))
    objects.put(NAME, file)
    assert hashlib.sha256(read(objects, NAME)).digest() == hashlib.sha256(data).digest()
    assert read(objects, NAME, len(data) - 5) == data[-5:]


def test_sweep_removes_old_objects(objects: ObjectStore):
    """An object may be stored again up to DATE_SECONDS after its date, so it is kept for that much longer."""
    objects.put(NAME, b"x")
    assert sweep(objects, 100, time.time() + 90 + DATE_SECONDS) == 0
    assert sweep(objects, 100, time.time() + 110 + DATE_SECONDS) == 1
    assert objects.stat(NAME) is None


def test_many_threads_store_the_same_object_at_once(objects: ObjectStore):
    """A reader gets the whole object or none."""
    data, seen = os.urandom(200_000), list[bytes]()

    def work() -> None:
        objects.put(NAME, data)
        seen.append(read(objects, NAME))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [data] * 8


def test_quota_of_a_person_counts_files_of_other_processes(stores: Stores):
    """A file that is sent again counts once."""
    first, second = stores.media(per_person_bytes=20_000), stores.media(per_person_bytes=20_000)
    for store, text in (
        (first, b"0"),
        (second, b"1"),
        (first, b"1"),
        (second, b"2"),
        (first, b"3"),
    ):
        store.put(text.ljust(5000), mime_type="text/plain", owner=ANA)
    with pytest.raises(QuotaExceeded, match="20000"):
        second.put(b"4".ljust(5000), mime_type="text/plain", owner=ANA)
    second.put(b"4".ljust(5000), mime_type="text/plain", owner=BOB)


def test_all_files_together_have_a_limit(stores: Stores):
    """Files of other processes count, too."""
    for at in range(4):
        stores.media().put(f"{at}".encode().ljust(5000), mime_type="text/plain", owner=ANA)
    with pytest.raises(NoRoom, match="20000 bytes"):
        stores.media(total_bytes=22_000).put(b"4".ljust(5000), mime_type="text/plain", owner=BOB)


def test_erasing_a_person_keeps_files_that_another_person_sent_too(stores: Stores):
    """This also holds if another process stored them."""
    media = stores.media()
    for owner in (ANA, BOB):
        shared = media.put(b"shared", mime_type="text/plain", owner=owner)
    own = media.put(b"own", mime_type="text/plain", owner=ANA)
    assert (stores.media().erase(ANA), stores.media().erase(ANA), media.read(shared.ref)) == (
        1,
        0,
        b"shared",
    )
    with pytest.raises(KeyError):
        media.read(own.ref)
    assert media.erase(BOB) == 1
    assert not [*stores.open("media").list(), *stores.open("owners").list()]


def test_erasure_that_fails_midway_can_be_repeated(stores: Stores, monkeypatch: pytest.MonkeyPatch):
    """The store stopped answering, or the command was killed."""
    media = stores.media()
    own = media.put(b"own", mime_type="text/plain", owner=ANA)

    def away(names: Iterable[str]) -> None:
        raise OSError("away")

    monkeypatch.setattr(media._files, "delete", away)
    with pytest.raises(OSError, match="away"):
        media.erase(ANA)
    assert stores.media().erase(ANA) == 1
    with pytest.raises(KeyError):
        media.read(own.ref)


def test_sweep_removes_files_with_the_names_of_their_senders(stores: Stores):
    """After a week neither the file nor its list of senders is left."""
    media = stores.media()
    media.put(b"x", mime_type="text/plain", owner=ANA)
    later = stores.media()
    later._clock = lambda: time.time() + WEEKS
    assert (media.sweep(), later.sweep()) == (0, 1)
    assert not [*stores.open("media").list(), *stores.open("owners").list()]


def test_texts_belong_to_one_person(stores: Stores):
    """Erasing one person's texts leaves those of others, also equal ones."""
    texts = TextFiles(stores.open("texts"))
    refs = {owner: texts.put(owner, "long" * 2000) for owner in (ANA, BOB)}
    assert texts.put(ANA, "another" * 2000)
    assert (texts.erase(ANA), texts.get(BOB, refs[BOB])) == (2, "long" * 2000)
    with pytest.raises(KeyError):
        texts.get(ANA, refs[ANA])
