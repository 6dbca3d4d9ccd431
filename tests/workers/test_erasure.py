"""Erasure in a conversation of several people: one person's data goes, that of the others stays."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from redis import ConnectionPool

from sayso.channels.console.store import Chats, Feed
from sayso.channels.types import Scope
from sayso.pending.turn_changes import Timer, TurnChange
from sayso.workers.erasure import FATES, ErasedPerson, Erasure, ErasureBusy
from tests.contracts.rigs import CHAT, Rig, turn
from tests.workers.documented_keys import documented_keys

ANA, BOB = (Scope(name, CHAT).id for name in ("ana", "bob"))
PREFIX = "sayso:era:"


@pytest.fixture
def rig(redis_client) -> Rig:
    """Return a conversation of two people; ana and bob each have a waiting turn and a timer."""
    rig = Rig(redis_client, prefix=PREFIX)
    for name in ("ana", "bob"):
        rig.accept(replace(turn(f"{name} talked"), user_id=name))
        lease, work = rig.mailbox.lease(CHAT.id, "w")
        timer = Timer(f"t-{name}", 2e9, f"{name} is told", user=Scope(name, CHAT).id)
        rig.mailbox.commit(
            lease, work, TurnChange(history=f"{name} history", timers=(timer,)), let_go=True
        )
    for name in ("ana", "bob"):
        rig.accept(replace(turn(f"{name} waits"), user_id=name))
    return rig


def kept(redis_client) -> str:
    """Return all that Redis holds, as text, in the order of its keys."""
    read = {
        "string": redis_client.get,
        "list": lambda key: redis_client.lrange(key, 0, -1),
        "hash": redis_client.hgetall,
    }
    found = sorted(
        set(redis_client.scan_iter(f"{PREFIX}*"))
    )  # a scan names keys in any order, and may name one twice
    return str([read[kind](key) for key in found if (kind := redis_client.type(key)) in read])


def erasure(redis_client, **options) -> Erasure:
    """Return an erasure that does not wait."""
    return Erasure(redis_client, PREFIX, sleep=lambda _: None, **options)


def test_list_of_conversations_goes_with_all_that_it_names(redis_client):
    """Commands alone leave no history, so only the list of the page names the conversation."""
    here = replace(CHAT, chat="ana", thread="00000000000000aa")
    Chats(redis_client, PREFIX).add(here)
    Feed(redis_client, PREFIX).append(here.id, {"type": "user", "text": "ana typed /help"})
    Rig(redis_client, prefix=PREFIX).accept(
        replace(turn("ana waits"), conversation=here, user_id="ana")
    )
    erasure(redis_client).erase(ErasedPerson("chat", frozenset({Scope("ana", here).id})))
    assert "ana" not in kept(redis_client)
    assert (
        redis_client.keys(f"{PREFIX}feed:*") + redis_client.keys(f"{PREFIX}console:chats:*") == []
    )


def test_in_a_group_only_the_data_of_the_person_goes(rig: Rig, redis_client):
    """Their waiting turn, history and timer go; those of the others stay."""
    assert "ana waits" in kept(redis_client)
    assert erasure(redis_client).erase(ErasedPerson("chat", frozenset({ANA}))) > 0
    left = kept(redis_client)
    gone = [words for words in ("ana waits", "ana history", "ana is told") if words in left]
    stays = [words for words in ("bob waits", "bob history", "bob is told") if words in left]
    assert (gone, len(stays)) == ([], 3)


def test_first_turn_that_still_waits_counts_as_taking_part(redis_client):
    """A history is stored with the answer. Neither of the two people has one when the other is erased."""
    rig = Rig(redis_client, prefix=PREFIX)
    for name in ("ana", "bob"):
        rig.accept(replace(turn(f"{name} waits"), user_id=name))
    assert erasure(redis_client).erase(ErasedPerson("chat", frozenset({ANA}))) == 1
    assert "ana waits" not in kept(redis_client)
    assert "bob waits" in kept(redis_client)


def test_timers_about_a_question_go_with_the_person_who_was_asked(rig: Rig, redis_client):
    """They hold the preview of the action. Their names say whose question it is."""
    timers = f"{rig.shard}:timer:{CHAT.id}"
    for user in (ANA, BOB):
        for name in (f"alarm:{user}", f"end:{user}"):
            redis_client.hset(timers, name, json.dumps({"ends": "a1", "ending": "preview"}))
    erasure(redis_client).erase(ErasedPerson("chat", frozenset({ANA})))
    assert set(redis_client.hkeys(timers)) == {"t-bob", f"alarm:{BOB}", f"end:{BOB}"}


def test_action_of_another_channel_stays(redis_client):
    """The same user id there may be another person."""
    store = Rig(redis_client, prefix=PREFIX).store
    for channel in ("chat", "other"):
        store.stash("ana", kind="pay", preview=f"Pay on {channel}", channel_id=channel)
    erasure(redis_client).erase(ErasedPerson("chat", frozenset({ANA})))
    assert "Pay on chat" not in kept(redis_client)
    assert "Pay on other" in kept(redis_client)


def test_damaged_undelivered_reply_does_not_stop_the_erasure(rig: Rig, redis_client):
    """Its list is that of all conversations of a shard."""
    redis_client.rpush(f"{rig.shard}:dead", "no JSON", json.dumps({"id": f"{CHAT.id}#1"}))
    erasure(redis_client).erase(ErasedPerson("chat", frozenset({ANA, BOB})))
    assert redis_client.lrange(f"{rig.shard}:dead", 0, -1) == ["no JSON"]


class Server:
    """A Redis server without replicas. Its rewrites end at once, with a status."""

    def __init__(self, status: str) -> None:
        self.connection_pool = ConnectionPool()
        self._status = status

    def info(self, section: str) -> dict[str, object]:
        """Return what INFO says of the append-only file and of replicas."""
        return {
            "aof_enabled": 1,
            "aof_rewrite_in_progress": 0,
            "aof_rewrite_scheduled": 0,
            "aof_last_bgrewrite_status": self._status,
        }

    def bgrewriteaof(self) -> None:
        """Begin a rewrite."""


@pytest.mark.parametrize(("status", "is_rewritten"), [("ok", True), ("err", False)])
def test_rewrite_that_failed_is_not_reported_as_done(status: str, is_rewritten: bool):
    """The disk was full, for example: the old file still holds what was erased."""
    assert erasure(Server(status)).rewrite_file() is is_rewritten


def test_another_channel_is_not_touched(rig: Rig, redis_client):
    """The same id on another channel may be another person."""
    before = kept(redis_client)
    assert erasure(redis_client).erase(ErasedPerson("other", frozenset({ANA, BOB}))) == 0
    assert kept(redis_client) == before


def kind_of(key: str) -> str:
    """Return the kind of a documented key: its first word."""
    return re.sub(r"^sayso:(\{N\}:|\{)?", "", key).partition(":")[0].rstrip("}")


def test_each_documented_key_is_erased_or_kept_on_purpose():
    """A new kind of key must be decided about: it has a row in FATES."""
    assert {kind_of(key) for key, _ in documented_keys()} == set(FATES)


def test_erasure_deletes_what_it_says_of_each_documented_key(redis_client):
    """One key of each row, of a conversation without other people."""
    write = {
        "string": lambda key: redis_client.set(key, "x"),
        "hash": lambda key: redis_client.hset(key, "user", ANA),
        "list": lambda key: redis_client.rpush(key, json.dumps({"id": f"{CHAT.id}#1"})),
        "sorted set": lambda key: redis_client.zadd(key, {"x": 1}),
        "stream": lambda key: redis_client.xadd(key, {"x": "x"}),
        "channel": lambda key: None,
    }
    names = {"{N}": "{7}", "<conversation>": CHAT.id, "<user>": ANA, "sayso:": PREFIX}
    goes, stays = set[str](), set[str]()
    for key, kind in documented_keys():
        name, fate = (
            re.sub("|".join(names), lambda found: names[found[0]], key),
            FATES[kind_of(key)],
        )
        if (
            kind == "channel" or name == f"{PREFIX}{{7}}:audit"
        ):  # the erasure waits until that one is empty
            continue
        write[kind](name)
        is_theirs = fate in ("entries", "owner") or (fate != "kept" and "<conversation>" in key)
        (goes if is_theirs else stays).add(name)
    erasure(redis_client).erase(ErasedPerson("chat", frozenset({ANA})))
    assert len(goes) > 15
    assert set(redis_client.scan_iter(f"{PREFIX}*")) == stays


class Overtaken:
    """A client: right before the first deletion of a history a worker starts a turn, and commits it afterwards."""

    def __init__(self, client, rig: Rig) -> None:
        self._client, self._rig, self._is_late = client, rig, False

    def __getattr__(self, name: str):
        return getattr(self._client, name)

    def delete(self, *keys: str) -> int:
        """Delete, between the worker's two steps."""
        if self._is_late or not any(":history:" in key for key in keys):
            return self._client.delete(*keys)
        self._is_late = True
        self._rig.accept(replace(turn("ana is back"), user_id="ana"))
        lease, work = self._rig.mailbox.lease(CHAT.id, "w")
        count = self._client.delete(*keys)
        self._rig.mailbox.commit(
            lease, work, TurnChange(history=f"{work.history} and more"), let_go=True
        )
        return count


def test_turn_during_the_erasure_does_not_restore_the_history(redis_client):
    """Its worker read the history before the erasure and wrote it afterwards."""
    rig = Rig(redis_client, prefix=PREFIX)
    rig.accept(replace(turn("ana talked"), user_id="ana"))
    lease, work = rig.mailbox.lease(CHAT.id, "w")
    rig.mailbox.commit(lease, work, TurnChange(history="ana history"), let_go=True)
    Erasure(Overtaken(redis_client, rig), PREFIX, sleep=lambda _: None).erase(
        ErasedPerson("chat", frozenset({ANA}))
    )
    assert "ana history" not in kept(redis_client)


def test_running_turn_refuses_the_erasure(rig: Rig, redis_client):
    """Its commit would write it again. The operator is told to try again, and nothing is erased."""
    rig.mailbox.lease(CHAT.id, "w")
    times = iter(range(10_000))
    with pytest.raises(ErasureBusy, match="try again"):
        erasure(redis_client, clock=lambda: float(next(times))).erase(
            ErasedPerson("chat", frozenset({ANA}))
        )
    assert "ana history" in kept(redis_client)
