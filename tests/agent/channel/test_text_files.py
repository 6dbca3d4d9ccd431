"""TextFiles: whose a text is, what reads it, and when it goes."""

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

ANA, BEA = "a" * 20, "b" * 20


@pytest.fixture
def store(tmp_path: Path) -> TextFiles:
    """A store in a folder that does not exist yet."""
    return TextFiles(tmp_path / "texts")


def files(folder: Path) -> list[Path]:
    """All that is on disk."""
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    "ref", ["../../../etc/passwd", "", "a" * 63, "A" * 64, "/" + "a" * 63, "a" * 64 + "\n", "*", "a" * 62 + "/x"]
)
def test_only_a_reference_of_ours_reads_anything(store: TextFiles, ref: str):
    """What somebody wrote into Redis gets no path out of the folder."""
    with pytest.raises(KeyError):
        store.get(ANA, ref)


@pytest.mark.parametrize("owner", ["", "..", "*", "a*" * 10, "../" * 6 + "aa", "A" * 20, "a" * 20 + "\n"])
def test_only_an_owner_of_ours_has_texts(store: TextFiles, owner: str):
    """Nothing else becomes a path, or a pattern that erases."""
    for call in (lambda: store.put(owner, "x"), lambda: store.get(owner, "a" * 64), lambda: store.erase(owner)):
        with pytest.raises(KeyError):
            call()


def test_reference_of_another_person_reads_nothing(store: TextFiles):
    """Also one that is known."""
    ref = store.put(ANA, "Ana's own words")
    with pytest.raises(KeyError):
        store.get(BEA, ref)


@pytest.mark.parametrize("damage", [b"", b"long te", b"LONG TEXT", b"long text and more"])
def test_damaged_file_is_gone_and_stored_anew(store: TextFiles, tmp_path: Path, damage: bytes):
    """Half a text is none. Who stores the text again mends it, if its length tells."""
    ref = store.put(ANA, "long text")
    files(tmp_path)[0].write_bytes(damage)
    with pytest.raises(KeyError):
        store.get(ANA, ref)
    store.put(ANA, "long text")
    if len(damage) != len("long text"):
        assert store.get(ANA, ref) == "long text"


def test_missing_file_is_gone(store: TextFiles, tmp_path: Path):
    """Swept, or on another machine."""
    ref = store.put(ANA, "long text")
    files(tmp_path)[0].unlink()
    with pytest.raises(KeyError):
        store.get(ANA, ref)


def test_failed_write_leaves_nothing_behind(store: TextFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A full disk makes no half files."""

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        store.put(ANA, "long text")
    assert not files(tmp_path)


def test_text_is_on_disk_before_it_has_a_reference(store: TextFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its bytes first, then its name; the name also when another worker has just written it."""
    synced = []
    monkeypatch.setattr("os.fsync", lambda handle: synced.append(stat.S_ISDIR(os.fstat(handle).st_mode)))
    store.put(ANA, "long text")
    store.put(ANA, "long text")
    assert synced == [False, True, True]


def test_two_workers_that_write_the_same_text_make_one_file(tmp_path: Path):
    """At once, from threads of two stores; each has a reference that reads."""
    stores = [TextFiles(tmp_path), TextFiles(tmp_path)] * 20
    with ThreadPoolExecutor(8) as pool:
        refs = set(pool.map(lambda store: store.put(ANA, "long text" * 1000), stores))
    assert [stores[0].get(ANA, ref) for ref in refs] == ["long text" * 1000]
    assert len(files(tmp_path)) == 1


@given(st.text(st.characters(exclude_categories=()), max_size=300))
def test_any_text_comes_back(tmp_path_factory: pytest.TempPathFactory, text: str):
    """Also one with lone surrogates, which JSON can spell."""
    store = TextFiles(tmp_path_factory.getbasetemp() / "texts")
    assert store.get(ANA, store.put(ANA, text)) == text


def test_only_our_own_user_reads_the_files(store: TextFiles, tmp_path: Path):
    """Whatever the umask is."""
    store.put(ANA, "long text")
    assert files(tmp_path)[0].stat().st_mode & 0o777 == 0o600


def test_old_texts_are_swept_and_those_in_use_stay(store: TextFiles, tmp_path: Path):
    """A text goes 30 days after it was stored or read last."""
    for text, age in (("old", KEEP_SECONDS + 60), ("young", KEEP_SECONDS - 60), ("read", KEEP_SECONDS + 60)):
        ref = store.put(ANA, text)
        os.utime(next(tmp_path.rglob(f"*-{ref}")), (0, time.time() - age))
    assert store.get(ANA, ref) == "read"
    assert store.sweep() == 1
    assert len(files(tmp_path)) == 2


def test_person_is_erased_and_nobody_else(store: TextFiles):
    """Two people who said the same each have their own file."""
    refs = [store.put(owner, "the same") for owner in (ANA, BEA)]
    assert (store.erase(ANA), store.erase(ANA)) == (1, 0)
    assert store.get(BEA, refs[1]) == "the same"
    with pytest.raises(KeyError):
        store.get(ANA, refs[0])
