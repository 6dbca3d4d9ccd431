"""Stores: where their keys come from, who owns an action, and how a wrong call fails."""

from __future__ import annotations

import logging

import pytest

from sayso.channels.types import Conversation, Scope
from sayso.pending import (
    DEFAULT_IGNORE_TTL_SECONDS,
    DEFAULT_TTL_SECONDS,
    InMemoryPendingStore,
    RedisPendingStore,
)
from sayso.pending.action import ActionSigner
from sayso.pending.consent.parser import RegexConfirmParser
from sayso.pending.store import scope_of

ROOM = {"channel_id": "chat", "conversation_id": "room"}
#: Scopes that are neither the conversation nor the user's own one.
ELSEWHERE = (
    {},
    {"channel_id": "chat"},
    {"conversation_id": "room"},
    {"channel_id": "other", "conversation_id": "room"},
)


@pytest.fixture
def store():
    """Return a store on a stopped clock, with an action in the conversation."""
    given = InMemoryPendingStore(clock=lambda: 1000.0)
    given.stash("ana", kind="delete", preview="Delete it", executor=lambda: "deleted", **ROOM)
    return given


@pytest.mark.parametrize("place", ELSEWHERE)
def test_calls_in_another_scope_do_not_touch_the_action(store, place):
    """Every method takes the whole scope: user, channel and conversation."""
    assert store.get("ana", **place) is None
    assert store.drop("ana", **place) is None
    assert store.tighten_ttl("ana", 1, **place) is None
    assert store.pop_if_intent("ana", "cancel", **place) is None
    assert store.pop_if_confirmed("ana", "yes", **place) is None
    assert store.get("ana", **ROOM).expires_at == 1060.0


def test_calls_in_the_scope_reach_the_action(store):
    """They have the same ids."""
    assert store.tighten_ttl("ana", 5, **ROOM).expires_at == 1005.0
    assert (
        store.pop_if_intent("ana", "ignore", ignore_ttl_seconds=4, **ROOM).record.expires_at
        == 1004.0
    )
    assert store.drop("ana", **ROOM).preview == "Delete it"


def test_scope_without_a_conversation_is_the_users_own():
    """A direct message has it."""
    assert scope_of("ana", None, None) == Scope("ana", Conversation("direct", "ana"))
    assert scope_of("ana", "chat", "room") == Scope("ana", Conversation("chat", "room"))


def test_stored_action_is_complete(store):
    """It has user, conversation, effect, window, and the parser of the answer."""
    action = store.stash(
        "bob",
        kind="pay",
        preview="Pay 5",
        args={"sum": 5},
        ttl_seconds=0.5,
        channel_id="chat",
        conversation_id="room",
    )
    assert (action.user_id, action.kind, action.preview, action.args) == (
        "bob",
        "pay",
        "Pay 5",
        {"sum": 5},
    )
    assert (action.channel_id, action.conversation_id, action.ttl_seconds) == ("chat", "room", 0.5)
    assert (action.parser_version, action.state, action.expires_at) == (
        RegexConfirmParser().version,
        "shown",
        1000.5,
    )
    assert action.requested_at > 1_700_000_000
    assert store.get("bob", **ROOM) == action


def test_defaults_are_those_of_the_seed():
    """They are a minute to answer, and ten seconds after an ignore."""
    store = InMemoryPendingStore(clock=lambda: 1000.0)
    assert store.stash("ana", kind="k", preview="p").expires_at == 1000.0 + DEFAULT_TTL_SECONDS
    assert (
        store.pop_if_intent("ana", "ignore").record.expires_at
        == 1000.0 + DEFAULT_IGNORE_TTL_SECONDS
    )
    assert store.ignore_ttl_seconds == DEFAULT_IGNORE_TTL_SECONDS


def test_default_window_and_parser_can_be_set(redis_client):
    """Both stores take them as arguments."""
    parser = RegexConfirmParser(["de"])
    for store in (
        InMemoryPendingStore(parser, 7),
        RedisPendingStore(
            parser=parser, default_ttl_seconds=7, client=redis_client, secret_keys=["key"]
        ),
    ):
        action = store.stash("ana", kind="k", preview="p", executor=lambda: "done")
        assert (action.ttl_seconds, action.parser_version) == (7, parser.version)
        assert store.pop_if_confirmed("ana", "yes") is None
        assert store.pop_if_confirmed("ana", "ja").result == "done"


@pytest.mark.parametrize("intent", ["CONFIRM", " confirm\n"])
def test_intent_is_read_as_platforms_spell_it(store, intent):
    """Capitals and spaces do not matter."""
    assert store.pop_if_intent("ana", intent, **ROOM).executed


def test_negative_seconds_are_refused_by_name(store):
    """The error names the argument and its value, and nothing changes; None is allowed."""
    with pytest.raises(
        ValueError, match=r"^seconds is -1: it must be 0 or more seconds, at most 86400$"
    ):
        store.tighten_ttl("ana", -1, **ROOM)
    with pytest.raises(
        ValueError, match=r"^ignore_ttl_seconds is -2: it must be 0 or more seconds, at most 86400$"
    ):
        store.pop_if_intent("ana", "ignore", ignore_ttl_seconds=-2, **ROOM)
    assert store.get("ana", **ROOM).expires_at == 1060.0
    assert store.tighten_ttl("ana", 0, **ROOM).expires_at == 1000.0


def test_refusal_of_a_second_action_names_the_user(store):
    """The caller learns who has to decide."""
    with pytest.raises(
        RuntimeError, match=r"^user 'ana' has an action waiting here: finish that one first$"
    ):
        store.stash("ana", kind="k", preview="p", **ROOM)


def test_keys_of_the_environment_sign_the_records(redis_client, monkeypatch):
    """The first one signs, all are accepted, and empty ones are skipped."""
    monkeypatch.setenv("SAYSO_SECRET_KEYS", "new,,old,")
    store = RedisPendingStore(client=redis_client)
    for keys in (["old"], ["new"]):
        assert store.signer.verify("text", ActionSigner(keys).sign("text"))
    assert store.signer.sign("text") == ActionSigner(["new"]).sign("text")


def test_missing_keys_are_logged(redis_client, monkeypatch, caplog):
    """The store works, and the log names what is missing. Processes without keys understand each other."""
    monkeypatch.delenv("SAYSO_SECRET_KEYS", raising=False)
    with caplog.at_level(logging.WARNING):
        first, second = (
            RedisPendingStore(client=redis_client),
            RedisPendingStore(client=redis_client),
        )
    assert "SAYSO_SECRET_KEYS is not set" in caplog.text
    assert (
        first.signer.sign("text")
        == second.signer.sign("text")
        == ActionSigner(["unsealed"]).sign("text")
    )


def test_store_in_memory_signs_with_a_random_key():
    """Each store has a key of its own."""
    assert InMemoryPendingStore().signer.sign("text") != InMemoryPendingStore().signer.sign("text")


def test_store_connects_to_the_url_it_is_given(redis_url, redis_client):
    """All its keys have the prefix."""
    store = RedisPendingStore(redis_url, "bot:", secret_keys=["key"])
    store.stash("ana", kind="k", preview="p")
    keys = redis_client.keys("*")
    assert keys
    assert all(key.startswith("bot:") for key in keys)
