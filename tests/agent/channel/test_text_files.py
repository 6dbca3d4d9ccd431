"""TextFiles: who owns a text, who may read it, and when it is deleted."""

from __future__ import annotations

import os
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sayso.agent.channel.long_texts import KEEP_SECONDS, TextFiles
from sayso.infra.storage.objects import DATE_SECONDS, LocalObjects

ANA, BEA = "a" * 20, "b" * 20


#: How long after its date a text stays: reading it leaves the date as it is for an hour.
LIFE = KEEP_SECONDS + DATE_SECONDS


@pytest.fixture
def store(tmp_path: Path) -> TextFiles:
    """Return a store in a folder that does not exist yet."""
    return TextFiles(LocalObjects(tmp_path / "texts"))


def files(folder: Path) -> list[Path]:
    """Return all files on disk."""
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    "ref",
    [
        "../../../etc/passwd",
        "",
        "a" * 63,
        "A" * 64,
        "/" + "a" * 63,
        "a" * 64 + "\n",
        "*",
        "a" * 62 + "/x",
    ],
)
def test_malformed_reference_reads_nothing(store: TextFiles, ref: str):
    """A reference that was changed in Redis cannot lead out of the folder."""
    with pytest.raises(KeyError):
        store.get(ANA, ref)


@pytest.mark.parametrize(
    "owner", ["", "..", "*", "a*" * 10, "../" * 6 + "aa", "A" * 20, "a" * 20 + "\n"]
)
def test_malformed_owner_has_no_texts(store: TextFiles, owner: str):
    """No other string becomes a path or a pattern that deletes."""
    for call in (
        lambda: store.put(owner, "x"),
        lambda: store.get(owner, "a" * 64),
        lambda: store.erase(owner),
    ):
        with pytest.raises(KeyError):
            call()


def test_reference_of_another_owner_reads_nothing(store: TextFiles):
    """It holds although the reference exists."""
    ref = store.put(ANA, "Ana's own words")
    with pytest.raises(KeyError):
        store.get(BEA, ref)


@pytest.mark.parametrize("damage", [b"", b"long te", b"LONG TEXT", b"long text and more"])
def test_damaged_file_is_missing_until_it_is_stored_again(
    store: TextFiles, tmp_path: Path, damage: bytes
):
    """A partial text is never returned. Storing the text again repairs a file of the wrong length."""
    ref = store.put(ANA, "long text")
    files(tmp_path)[0].write_bytes(damage)
    with pytest.raises(KeyError):
        store.get(ANA, ref)
    store.put(ANA, "long text")
    if len(damage) != len("long text"):
        assert store.get(ANA, ref) == "long text"


def test_missing_file_raises_key_error(store: TextFiles, tmp_path: Path):
    """The file was swept or lies on another machine."""
    ref = store.put(ANA, "long text")
    files(tmp_path)[0].unlink()
    with pytest.raises(KeyError):
        store.get(ANA, ref)


def test_failed_write_leaves_no_file(
    store: TextFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A full disk leaves no partial file."""

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        store.put(ANA, "long text")
    assert not files(tmp_path)


def test_text_is_on_disk_before_its_reference_is_returned(
    store: TextFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Its content is synced first, then its name; the name also if another worker has just written it."""
    synced = []
    monkeypatch.setattr(
        "os.fsync", lambda handle: synced.append(stat.S_ISDIR(os.fstat(handle).st_mode))
    )
    store.put(ANA, "long text")
    store.put(ANA, "long text")
    assert synced == [False, True, True]


def test_concurrent_writes_of_one_text_make_one_file(tmp_path: Path):
    """Threads of two stores write at once, and each gets a reference that works."""
    stores = [TextFiles(LocalObjects(tmp_path)), TextFiles(LocalObjects(tmp_path))] * 20
    with ThreadPoolExecutor(8) as pool:
        refs = set(pool.map(lambda store: store.put(ANA, "long text" * 1000), stores))
    assert [stores[0].get(ANA, ref) for ref in refs] == ["long text" * 1000]
    assert len(files(tmp_path)) == 1


@given(st.text(st.characters(exclude_categories=()), max_size=300))
def test_any_text_is_read_back_unchanged(tmp_path_factory: pytest.TempPathFactory, text: str):
    """The texts include lone surrogates, which JSON can spell."""
    store = TextFiles(LocalObjects(tmp_path_factory.getbasetemp() / "texts"))
    assert store.get(ANA, store.put(ANA, text)) == text


def test_files_are_readable_by_their_user_only(store: TextFiles, tmp_path: Path):
    """The mode does not depend on the umask."""
    store.put(ANA, "long text")
    assert files(tmp_path)[0].stat().st_mode & 0o777 == 0o600


def test_old_texts_are_swept_and_recently_read_ones_stay(store: TextFiles, tmp_path: Path):
    """A text is deleted 30 days after it was last stored or read."""
    for text, age in (("old", LIFE + 60), ("young", LIFE - 60), ("read", LIFE + 60)):
        ref = store.put(ANA, text)
        os.utime(next(tmp_path.rglob(f"*-{ref}")), (0, time.time() - age))
    assert store.get(ANA, ref) == "read"
    assert store.sweep() == 1
    assert len(files(tmp_path)) == 2


def test_erasing_one_owner_keeps_the_texts_of_others(store: TextFiles):
    """Two users with the same text each have a file of their own."""
    refs = [store.put(owner, "the same") for owner in (ANA, BEA)]
    assert (store.erase(ANA), store.erase(ANA)) == (1, 0)
    assert store.get(BEA, refs[1]) == "the same"
    with pytest.raises(KeyError):
        store.get(ANA, refs[0])
