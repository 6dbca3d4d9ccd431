"""Session stores: the promises of every store, dangerous paths first."""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sayso.agent import ConversationMemory, Message, Role, ToolCall
from sayso.agent.memory.session_backends import (
    JsonFileSessionStore,
    RedisSessionStore,
    SQLiteSessionStore,
)
from sayso.agent.memory.sessions import (
    BrokenSession,
    InMemorySessionStore,
    KeyValueSessions,
    SessionError,
    SessionKey,
    SessionMetadata,
)
from sayso.channels.types import Media

KINDS = ["memory", "files", "sqlite", "redis", "cluster"]
#: Those whose sessions several processes share. A cluster is the same code as one server.
PROCESS_KINDS = KINDS[1:4]
STRANGE = [
    "../x",
    "/etc/passwd",
    "",
    ".",
    "a\0b",
    "user:1",
    "USER:1",
    "*",
    "[a]",
    "\U0001f600" * 40,
    "x" * 300,
    "a\ud83d",
]


class Clock:
    """A clock in Unix seconds that a test moves."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def open_store(kind: str, where: str, **options) -> KeyValueSessions:
    """Open a store of a kind; the same place has the same sessions."""
    if kind in ("redis", "cluster"):
        return RedisSessionStore(where, **options)
    path = Path(where)
    return (
        JsonFileSessionStore(path, **options)
        if kind == "files"
        else SQLiteSessionStore(path, **options)
    )


@pytest.fixture(params=KINDS)
def kind(request):
    """Return each kind of store."""
    return request.param


@pytest.fixture
def place(kind, tmp_path, request):
    """Return the place of a store of this kind."""
    if kind == "redis":
        request.getfixturevalue("redis_client")
        return request.getfixturevalue("redis_url")
    if kind == "cluster":
        request.getfixturevalue("cluster_client")
        return request.getfixturevalue("cluster").url
    return str(tmp_path / ("sessions" if kind == "files" else "sessions.db"))


@pytest.fixture
def clock():
    """Return the stores' clock."""
    return Clock()


@pytest.fixture
def make(kind, place, clock):
    """Return a function that makes stores of one kind over one place."""
    if kind == "memory":
        return lambda **options: InMemorySessionStore(clock=clock, **options)
    return lambda **options: open_store(kind, place, clock=clock, **options)


@pytest.fixture
def store(make):
    """Return a store whose sessions do not expire."""
    return make()


def put_raw(store, session_id: str, text: str, *, namespace=None) -> None:
    """Put another text where the session belongs."""
    key = SessionKey(session_id, namespace)
    store._save_text(key, text, None)


def memory_of(*words: str) -> ConversationMemory:
    """Return a conversation with these user messages."""
    memory = ConversationMemory(max_messages=100)
    for said in words:
        memory.add_many([Message(Role.USER, said), Message(Role.ASSISTANT, "yes")])
    return memory


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", "null", "\x00", '{"memory": {"messages": []}}', "[" * 100_000]
)
def test_broken_session_is_an_error_and_stays(store, text):
    """It does not load as an empty conversation, which a save would write over it. The error names session and cure."""
    put_raw(store, "ana", text)
    for door in (store.load, store.exists, lambda id_: store.save(id_, memory_of("new"))):
        with pytest.raises(BrokenSession, match=r"'ana'.*delete the session"):
            door("ana")
    assert store._load_text(SessionKey("ana")) == text


def test_broken_messages_are_an_error(store):
    """The envelope is right, and the messages are not."""
    store.save("ana", memory_of("hi"))
    text = store._load_text(SessionKey("ana"))
    put_raw(store, "ana", text.replace('"role": "user"', '"role": "boss"'))
    with pytest.raises(BrokenSession, match=r"'ana'"):
        store.load("ana")


@pytest.mark.parametrize("expires_at", ['""', "[]", "{}", '"9"', "NaN"])
def test_session_with_no_number_as_a_time_is_broken(store, expires_at):
    """It is left out of the list, and can be deleted."""
    store.save("ana", memory_of("hi"))
    text = store._load_text(SessionKey("ana"))
    put_raw(store, "ana", text.replace('"expires_at": null', f'"expires_at": {expires_at}'))
    with pytest.raises(BrokenSession):
        store.load("ana")
    assert store.list() == []
    assert store.delete("ana") is True


def test_session_of_another_id_is_an_error(store):
    """A file that was copied to another id's place is not shown there."""
    store.save("ana", memory_of("my secret"))
    text = store._load_text(SessionKey("ana"))
    put_raw(store, "bob", text)
    with pytest.raises(BrokenSession, match="'bob'"):
        store.load("bob")
    assert [data.session_id for data in store.list()] == ["ana"]


def test_broken_session_can_be_deleted_and_started_anew(store):
    """The error names this cure."""
    put_raw(store, "ana", "{")
    assert store.delete("ana") is True
    store.save("ana", memory_of("new"))
    assert store.load("ana") == memory_of("new")


def test_broken_session_is_left_out_of_the_list_and_logged(store, caplog):
    """The others can still be found, and the log holds no message text."""
    store.save("ana", memory_of("hi"))
    put_raw(store, "bob", '{"said": "secret"')
    with caplog.at_level(logging.WARNING):
        assert [data.session_id for data in store.list()] == ["ana"]
    assert "sessions.broken" in caplog.text
    assert "secret" not in caplog.text


def test_namespaces_never_meet(store):
    """The same id in two namespaces is two sessions, and no method of one shows the other."""
    store.save("1", memory_of("mine"), namespace="ana")
    for other in (None, "", "bob", "ANA"):
        assert store.load("1", namespace=other) is None
        assert store.exists("1", namespace=other) is False
        assert store.list(namespace=other) == []
        assert store.delete("1", namespace=other) is False
    store.save("1", memory_of("hers"), namespace="bob")
    assert store.load("1", namespace="ana") == memory_of("mine")


def test_no_two_ids_share_a_session(store):
    """An id may be any text, even one that looks like a namespace and an id."""
    names = [(id_, None) for id_ in STRANGE] + [
        ("b", "a"),
        ("a:b", None),
        ("", "a:b"),
        ("a/b", None),
        ("b", "a/"),
    ]
    for number, (id_, namespace) in enumerate(names):
        store.save(id_, memory_of(str(number)), namespace=namespace)
    for number, (id_, namespace) in enumerate(names):
        assert store.load(id_, namespace=namespace) == memory_of(str(number))
    listed = {data.session_id for data in store.list()}
    assert listed == {id_ for id_, namespace in names if namespace is None}


def test_expired_session_is_not_found_and_is_deleted(make, clock):
    """This holds for every method, and the stored text is removed too."""
    store = make(default_ttl=60)
    for door in (store.load, store.exists, lambda _: store.list(), store.delete):
        store.save("ana", memory_of("hi"))
        clock.now += 60
        assert not door("ana")
        assert store._load_text(SessionKey("ana")) is None


def test_save_after_expiry_starts_a_new_session(make, clock):
    """It does not inherit the old one's start time."""
    store = make(default_ttl=60)
    store.save("ana", memory_of("hi"))
    clock.now += 90
    store.save("ana", memory_of("again"))
    assert store.list() == [SessionMetadata("ana", 2, 1090, 1090)]


def test_each_save_renews_the_ttl(make, clock):
    """The TTL runs from the last save."""
    store = make(default_ttl=60)
    for _ in range(3):
        store.save("ana", memory_of("hi"))
        clock.now += 59
    assert store.load("ana") == memory_of("hi")


def test_session_that_was_saved_meanwhile_does_not_expire(make, clock):
    """A reader that saw the old text expire does not remove the new one."""
    store = make(default_ttl=60)
    store.save("ana", memory_of("old"))
    old = store._load_text(SessionKey("ana"))
    clock.now += 60
    store.save("ana", memory_of("new"))
    store._delete_if_unchanged(SessionKey("ana"), old)
    assert store.load("ana") == memory_of("new")


def test_value_that_json_cannot_hold_is_refused_and_the_old_stays(store):
    """No session is half written."""
    store.save("ana", memory_of("old"))
    memory = memory_of("new")
    memory.notes["when"] = object()
    with pytest.raises(BrokenSession, match=r"'ana'.*JSON-ready"):
        store.save("ana", memory)
    assert store.load("ana") == memory_of("old")


def test_threads_that_save_at_once_leave_one_whole_session(store):
    """The last one wins, and readers see one whole session at any time."""
    long = [memory_of(*[str(number)] * 40) for number in range(8)]
    start, seen, failed = threading.Barrier(len(long)), [], []

    def work(memory):
        start.wait()
        try:
            for _ in range(5):
                store.save("ana", memory)
                seen.append(store.load("ana"))
        except Exception as exc:  # noqa: BLE001  # shown by the test's own thread
            failed.append(exc)

    threads = [threading.Thread(target=work, args=(memory,)) for memory in long]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert all(memory in long for memory in seen)


#: A process begins as a copy of this one: Python and Sayso take a second of processor time to load.
FORKS = multiprocessing.get_context("fork")


def _save_often(kind: str, place: str, words: str) -> None:
    store = open_store(kind, place)
    for _ in range(10):
        store.save("ana", memory_of(*[words] * 40))
        store.save(words, memory_of(words))


@pytest.mark.parametrize("kind", PROCESS_KINDS, indirect=True)
def test_processes_that_save_at_once_leave_one_whole_session(kind, place, make):
    """This holds even if all of them create the store."""
    workers = [FORKS.Process(target=_save_often, args=(kind, place, words)) for words in "abc"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    store = make()
    assert store.load("ana") in [memory_of(*[words] * 40) for words in "abc"]
    assert [store.load(words) for words in "abc"] == [memory_of(words) for words in "abc"]


def _save_without_end(kind: str, place: str, saved: Connection) -> None:
    store = open_store(kind, place)
    while True:
        for words in "ab":
            store.save("ana", memory_of(*[words] * 40))
            saved.send(words)


@pytest.mark.parametrize("kind", PROCESS_KINDS, indirect=True)
def test_process_that_is_killed_while_it_saves_leaves_one_whole_session(kind, place, make):
    """It is the last finished one or the next one, and other processes can save."""
    for round_ in range(3):
        reports, saved = FORKS.Pipe(duplex=False)
        saving = FORKS.Process(target=_save_without_end, args=(kind, place, saved))
        saving.start()
        for _ in range(round_ + 1):
            reports.recv()
        saving.kill()
        saving.join()
        assert make().load("ana") in [memory_of(*[words] * 40) for words in "ab"]
    make().save("ana", memory_of("mine"))
    assert make().load("ana") == memory_of("mine")


@pytest.mark.parametrize("kind", PROCESS_KINDS, indirect=True)
def test_session_outlives_its_store(make):
    """The next process loads what the first one saved."""
    make().save("ana", memory_of("hi"))
    assert make().load("ana") == memory_of("hi")


def test_whole_conversation_comes_back(store):
    """Calls, results, media references, half surrogates, summary and notes come back; media bytes do not."""
    memory = memory_of("a\ud83d\x00\u2028")
    call = ToolCall("find", {"q": "\udc00", "n": 1.5}, "c1")
    memory.add(
        Message(Role.USER, "look", media=(Media("ref", "image/png", "a.png", 3, stored=True),))
    )
    memory.add(Message(Role.ASSISTANT, tool_calls=(call,)))
    memory.add(Message(Role.TOOL, "found", tool_call_id="c1", tool_name="find"))
    memory.summary, memory.notes = "Ana called.", {"entities": [{"name": "Ana"}]}
    store.save("ana", memory)
    assert store.load("ana") == memory


def test_loaded_conversation_is_a_copy(store):
    """A change to it reaches the store with the next save."""
    store.save("ana", memory_of("hi"))
    store.load("ana").clear()
    assert store.load("ana") == memory_of("hi")


def test_missing_session_is_none(store):
    """A store that was never written to lists no sessions."""
    assert (store.load("ana"), store.exists("ana"), store.list(), store.delete("ana")) == (
        None,
        False,
        [],
        False,
    )


def test_list_has_counts_and_times_latest_first(store, clock):
    """A second save keeps the session's start time."""
    store.save("ana", memory_of("hi"))
    clock.now += 1
    store.save("bob", memory_of("hi", "there"))
    clock.now += 1
    store.save("ana", memory_of("hi", "again", "you"))
    assert store.list() == [
        SessionMetadata("ana", 6, 1000, 1002),
        SessionMetadata("bob", 4, 1001, 1001),
    ]


def test_deleted_session_is_gone(store):
    """A second delete finds none."""
    store.save("ana", memory_of("hi"))
    assert (store.delete("ana"), store.delete("ana"), store.exists("ana")) == (True, False, False)


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf")])
def test_ttl_that_keeps_nothing_is_refused(make, ttl):
    """Such a TTL is a mistake, not a way to switch the store off."""
    with pytest.raises(ValueError, match="default_ttl"):
        make(default_ttl=ttl)


@given(ids=st.lists(st.text(st.characters(), max_size=20), unique=True, max_size=5))
def test_any_id_is_a_path_inside_the_folder(tmp_path_factory, ids):
    """Files and folders have names of hex digits, whatever the id and the namespace are."""
    folder = tmp_path_factory.mktemp("ids") / "sessions"
    store = JsonFileSessionStore(folder)
    for id_ in ids:
        store.save(id_, memory_of(id_), namespace=id_)
    found = list(folder.parent.rglob("*.json"))
    assert len(found) == len(ids)
    assert all(
        path.parent.parent == folder and set(path.stem) <= set("0123456789abcdef") for path in found
    )


def test_only_the_own_user_can_read_the_files(tmp_path):
    """Folders have mode 0700, files and the database 0600."""
    old = os.umask(0)
    try:
        JsonFileSessionStore(tmp_path / "sessions").save("ana", memory_of("hi"))
        SQLiteSessionStore(tmp_path / "db" / "sessions.db").save("ana", memory_of("hi"))
    finally:
        os.umask(old)
    made = list(tmp_path.rglob("*"))
    assert {path.stat().st_mode & 0o777 for path in made if path.is_dir()} == {0o700}
    assert {path.stat().st_mode & 0o777 for path in made if path.is_file()} == {0o600}


def test_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    """The disk is full. The old session is there, whole, and no other file."""
    store = JsonFileSessionStore(tmp_path / "sessions")
    store.save("ana", memory_of("old"))

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SessionError, match=r"'ana'.*No space left"):
        store.save("ana", memory_of("new"))
    assert store.load("ana") == memory_of("old")
    assert len(list((tmp_path / "sessions").glob("*/*"))) == 1


def test_unfinished_file_of_a_killed_process_is_no_session_and_is_removed(tmp_path):
    """It goes after an hour, at the next listing."""
    store = JsonFileSessionStore(tmp_path)
    store.save("ana", memory_of("hi"))
    (shelf,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    (shelf / ".new").write_text("{")
    (shelf / ".old").write_text("{")
    os.utime(shelf / ".old", (0, 0))
    assert [data.session_id for data in store.list()] == ["ana"]
    assert sorted(path.name for path in shelf.glob(".*")) == [".new"]


def test_foreign_database_is_an_error(tmp_path):
    """It is not overwritten, and the error names session, file and cure."""
    path = tmp_path / "sessions.db"
    path.write_text("my diary\n" * 100)
    with pytest.raises(SessionError, match=r"'ana'.*sessions\.db.*a writable database of Sayso"):
        SQLiteSessionStore(path).save("ana", memory_of("hi"))
    assert path.read_text().startswith("my diary")


def test_deleted_text_is_not_left_in_the_database(tmp_path):
    """Free pages of the file are overwritten."""
    store = SQLiteSessionStore(tmp_path / "sessions.db")
    store.save("ana", memory_of("my secret word"))
    store.delete("ana")
    assert b"my secret word" not in (tmp_path / "sessions.db").read_bytes()


def test_database_in_memory_is_refused():
    """Each call opens the file anew, so such a database would be empty at once."""
    with pytest.raises(ValueError, match="InMemorySessionStore"):
        SQLiteSessionStore(":memory:")


def test_redis_expires_a_session_itself(redis_client, redis_url):
    """No process has to clean up; without a TTL it stays. Keys hold no id in clear, and values are JSON."""
    RedisSessionStore(redis_url, default_ttl=60).save("ana", memory_of("hi"))
    RedisSessionStore(redis_url, prefix="other*:").save("+49 170", memory_of("hi"))
    (timed,), (kept,) = redis_client.keys("sayso:session:*"), redis_client.keys("other*")
    assert 59_000 < redis_client.pttl(timed) <= 60_000
    assert redis_client.ttl(kept) == -1
    assert "170" not in kept


@pytest.mark.parametrize("prefix", ["a*:", "a[bc]:", "a\\:", "ab:"])
def test_prefix_is_taken_literally(redis_client, redis_url, prefix):
    """A store lists its own keys only."""
    store = RedisSessionStore(redis_url, prefix=prefix)
    RedisSessionStore(redis_url, prefix="abc:").save("bob", memory_of("hi"))
    store.save("ana", memory_of("hi"))
    assert [data.session_id for data in store.list()] == ["ana"]


def test_foreign_key_of_redis_is_an_error(redis_client, redis_url):
    """The key has another type, or its bytes are no text."""
    store = RedisSessionStore(redis_url)
    redis_client.hset(store._redis_key(SessionKey("ana")), "a", "b")
    redis_client.set(store._redis_key(SessionKey("bob")), b"\xff\xfe")
    for id_ in ("ana", "bob"):
        with pytest.raises(BrokenSession, match=repr(id_)):
            store.load(id_)
    assert store.list() == []


def test_error_of_an_unreachable_redis_does_not_show_its_url():
    """The URL may hold a password. Creating the store makes no call."""
    store = RedisSessionStore("redis://:hunter2@127.0.0.1:1/0")
    with pytest.raises(SessionError, match=r"'ana'.*Redis") as caught:
        store.load("ana")
    assert "hunter2" not in str(caught.value)
