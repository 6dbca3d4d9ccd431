"""Stores: where their keys come from, whose an action is, and what a wrong call hears."""

from __future__ import annotations

import logging

import pytest

from sayso.channels.types import Conversation, Scope
from sayso.pending import DEFAULT_IGNORE_TTL_SECONDS, DEFAULT_TTL_SECONDS, InMemoryPendingStore, RedisPendingStore
from sayso.pending.action import ActionSigner
from sayso.pending.consent import RegexConfirmParser
from sayso.pending.store import scope_of

ROOM = {"channel_id": "chat", "conversation_id": "room"}
#: Neither the room nor the user's own conversation.
ELSEWHERE = (
    {},
    {"channel_id": "chat"},
    {"conversation_id": "room"},
    {"channel_id": "other", "conversation_id": "room"},
)


@pytest.fixture
def store():
    """A store on a clock that stands still, with an action in the room."""
    given = InMemoryPendingStore(clock=lambda: 1000.0)
    given.stash("ana", kind="delete", preview="Delete it", executor=lambda: "deleted", **ROOM)
    return given


@pytest.mark.parametrize("place", ELSEWHERE)
def test_what_is_done_elsewhere_does_not_touch_the_action(store, place):
    """Every door takes the whole scope: user, channel and conversation."""
    assert store.get("ana", **place) is None
    assert store.drop("ana", **place) is None
    assert store.tighten_ttl("ana", 1, **place) is None
    assert store.pop_if_intent("ana", "cancel", **place) is None
    assert store.pop_if_confirmed("ana", "yes", **place) is None
    assert store.get("ana", **ROOM).expires_at == 1060.0


def test_what_is_done_here_reaches_it(store):
    """By the same ids."""
    assert store.tighten_ttl("ana", 5, **ROOM).expires_at == 1005.0
    assert store.pop_if_intent("ana", "ignore", ignore_ttl_seconds=4, **ROOM).record.expires_at == 1004.0
    assert store.drop("ana", **ROOM).preview == "Delete it"


def test_scope_without_a_conversation_is_the_users_own():
    """As in a direct message."""
    assert scope_of("ana", None, None) == Scope("ana", Conversation("direct", "ana"))
    assert scope_of("ana", "chat", "room") == Scope("ana", Conversation("chat", "room"))


def test_stored_action_says_what_was_asked_and_when(store):
    """The record is complete: who, where, what, for how long, and which parser judges the answer."""
    action = store.stash(
        "bob", kind="pay", preview="Pay 5", args={"sum": 5}, ttl_seconds=0.5, channel_id="chat", conversation_id="room"
    )
    assert (action.user_id, action.kind, action.preview, action.args) == ("bob", "pay", "Pay 5", {"sum": 5})
    assert (action.channel_id, action.conversation_id, action.ttl_seconds) == ("chat", "room", 0.5)
    assert (action.parser_version, action.state, action.expires_at) == (RegexConfirmParser().version, "shown", 1000.5)
    assert action.requested_at > 1_700_000_000
    assert store.get("bob", **ROOM) == action


def test_defaults_are_those_of_the_seed():
    """A minute to answer, ten seconds after an ignore."""
    store = InMemoryPendingStore(clock=lambda: 1000.0)
    assert store.stash("ana", kind="k", preview="p").expires_at == 1000.0 + DEFAULT_TTL_SECONDS
    assert store.pop_if_intent("ana", "ignore").record.expires_at == 1000.0 + DEFAULT_IGNORE_TTL_SECONDS
    assert store.ignore_ttl_seconds == DEFAULT_IGNORE_TTL_SECONDS


def test_default_window_and_parser_are_the_callers(redis_client):
    """Both stores take them."""
    parser = RegexConfirmParser(["de"])
    for store in (
        InMemoryPendingStore(parser, 7),
        RedisPendingStore(parser=parser, default_ttl_seconds=7, client=redis_client, secret_keys=["key"]),
    ):
        action = store.stash("ana", kind="k", preview="p", executor=lambda: "done")
        assert (action.ttl_seconds, action.parser_version) == (7, parser.version)
        assert store.pop_if_confirmed("ana", "yes") is None
        assert store.pop_if_confirmed("ana", "ja").result == "done"


@pytest.mark.parametrize("intent", ["CONFIRM", " confirm\n"])
def test_intent_is_read_as_platforms_spell_it(store, intent):
    """Capitals and spaces decide nothing."""
    assert store.pop_if_intent("ana", intent, **ROOM).executed


def test_negative_seconds_are_refused_by_name(store):
    """A caller's mistake names the argument and its value, and changes nothing; none at all is allowed."""
    with pytest.raises(ValueError, match=r"^seconds is -1: it must be 0 or more seconds, at most 86400$"):
        store.tighten_ttl("ana", -1, **ROOM)
    with pytest.raises(ValueError, match=r"^ignore_ttl_seconds is -2: it must be 0 or more seconds, at most 86400$"):
        store.pop_if_intent("ana", "ignore", ignore_ttl_seconds=-2, **ROOM)
    assert store.get("ana", **ROOM).expires_at == 1060.0
    assert store.tighten_ttl("ana", 0, **ROOM).expires_at == 1000.0


def test_second_action_is_refused_by_its_users_name(store):
    """The caller reads whose turn it is to decide."""
    with pytest.raises(RuntimeError, match=r"^user 'ana' has an action waiting here: finish that one first$"):
        store.stash("ana", kind="k", preview="p", **ROOM)


def test_keys_of_the_environment_seal_the_records(redis_client, monkeypatch):
    """The first one signs, all are accepted, and empty ones between the commas are none."""
    monkeypatch.setenv("SAYSO_SECRET_KEYS", "new,,old,")
    store = RedisPendingStore(client=redis_client)
    for keys in (["old"], ["new"]):
        assert store.signer.verify("text", ActionSigner(keys).sign("text"))
    assert store.signer.sign("text") == ActionSigner(["new"]).sign("text")


def test_no_keys_at_all_are_told(redis_client, monkeypatch, caplog):
    """It works, and the operator reads what is missing; every process without keys understands the others."""
    monkeypatch.delenv("SAYSO_SECRET_KEYS", raising=False)
    with caplog.at_level(logging.WARNING):
        first, second = RedisPendingStore(client=redis_client), RedisPendingStore(client=redis_client)
    assert "SAYSO_SECRET_KEYS is not set" in caplog.text
    assert first.signer.sign("text") == second.signer.sign("text") == ActionSigner(["unsealed"]).sign("text")


def test_memory_seals_with_a_key_nobody_knows():
    """Each store has its own."""
    assert InMemoryPendingStore().signer.sign("text") != InMemoryPendingStore().signer.sign("text")


def test_store_connects_to_the_url_it_is_given(redis_url, redis_client):
    """And keeps everything under its prefix."""
    store = RedisPendingStore(redis_url, "bot:", secret_keys=["key"])
    store.stash("ana", kind="k", preview="p")
    keys = redis_client.keys("*")
    assert keys
    assert all(key.startswith("bot:") for key in keys)
