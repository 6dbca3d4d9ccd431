"""Erasure in a conversation of several people: one person's words go, those of the others stay."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sayso.channels.types import Scope
from sayso.pending.turns import Timer, TurnChange
from sayso.workers.erasure import ErasedPerson, Erasure, ErasureBusy
from tests.contracts.rigs import CHAT, RedisRig, turn

ANA, BOB = (Scope(name, CHAT).id for name in ("ana", "bob"))
PREFIX = "sayso:era:"


@pytest.fixture
def rig(redis_client) -> RedisRig:
    """A conversation in which two people have talked; Ana and Bob each wait with a turn and a timer."""
    rig = RedisRig(redis_client, prefix=PREFIX)
    for name in ("ana", "bob"):
        rig.accept(replace(turn(f"{name} talked"), user_id=name))
        lease, work = rig.mailbox.lease(CHAT.id, "w")
        timer = Timer(f"t-{name}", 2e9, f"{name} is told", user=Scope(name, CHAT).id)
        rig.mailbox.commit(lease, work, TurnChange(history=f"{name} history", timers=(timer,)), let_go=True)
    for name in ("ana", "bob"):
        rig.accept(replace(turn(f"{name} waits"), user_id=name))
    return rig


def kept(redis_client) -> str:
    """All that Redis holds, as text, in the order of its keys."""
    read = {
        "string": redis_client.get,
        "list": lambda key: redis_client.lrange(key, 0, -1),
        "hash": redis_client.hgetall,
    }
    found = sorted(set(redis_client.scan_iter(f"{PREFIX}*")))  # a scan names keys in any order, and may name one twice
    return str([read[kind](key) for key in found if (kind := redis_client.type(key)) in read])


def erasure(redis_client, **options) -> Erasure:
    """An erasure that does not wait."""
    return Erasure(redis_client, PREFIX, sleep=lambda _: None, **options)


def test_in_a_group_only_the_words_of_the_person_go(rig: RedisRig, redis_client):
    """Their turn that waits, their history and their timer; not those of the others."""
    assert "ana waits" in kept(redis_client)
    assert erasure(redis_client).erase(ErasedPerson("chat", frozenset({ANA}))) > 0
    left = kept(redis_client)
    gone = [words for words in ("ana waits", "ana history", "ana is told") if words in left]
    stays = [words for words in ("bob waits", "bob history", "bob is told") if words in left]
    assert (gone, len(stays)) == ([], 3)


def test_another_channel_is_not_touched(rig: RedisRig, redis_client):
    """The same id elsewhere may be somebody else."""
    before = kept(redis_client)
    assert erasure(redis_client).erase(ErasedPerson("other", frozenset({ANA, BOB}))) == 0
    assert kept(redis_client) == before


class Overtaken:
    """A client before whose first deletion of a history a worker takes up a turn, which it commits after it."""

    def __init__(self, client, rig: RedisRig) -> None:
        self._client, self._rig, self._is_late = client, rig, False

    def __getattr__(self, name: str):
        return getattr(self._client, name)

    def delete(self, *keys: str) -> int:
        """Delete, with what happens around it."""
        if self._is_late or not any(":history:" in key for key in keys):
            return self._client.delete(*keys)
        self._is_late = True
        self._rig.accept(replace(turn("ana is back"), user_id="ana"))
        lease, work = self._rig.mailbox.lease(CHAT.id, "w")
        count = self._client.delete(*keys)
        self._rig.mailbox.commit(lease, work, TurnChange(history=f"{work.history} and more"), let_go=True)
        return count


def test_a_turn_that_comes_meanwhile_does_not_bring_the_history_back(redis_client):
    """Its worker read the history before it was erased, and wrote it after."""
    rig = RedisRig(redis_client, prefix=PREFIX)
    rig.accept(replace(turn("ana talked"), user_id="ana"))
    lease, work = rig.mailbox.lease(CHAT.id, "w")
    rig.mailbox.commit(lease, work, TurnChange(history="ana history"), let_go=True)
    Erasure(Overtaken(redis_client, rig), PREFIX, sleep=lambda _: None).erase(ErasedPerson("chat", frozenset({ANA})))
    assert "ana history" not in kept(redis_client)


def test_a_turn_that_is_worked_on_is_not_torn_out_of_its_worker(rig: RedisRig, redis_client):
    """It would be written again by its commit: the operator is told to try again, and nothing is erased."""
    rig.mailbox.lease(CHAT.id, "w")
    times = iter(range(10_000))
    with pytest.raises(ErasureBusy, match="try again"):
        erasure(redis_client, clock=lambda: float(next(times))).erase(ErasedPerson("chat", frozenset({ANA})))
    assert "ana history" in kept(redis_client)
