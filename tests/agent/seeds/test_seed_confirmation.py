"""Deferred confirmation as selectools documents it: one question, one yes in a later turn, one effect."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import replace

import pytest

from sayso.agent import Agent, ChannelAgent, ScriptedProvider, ToolCall, tool
from sayso.pending import (
    DEFAULT_IGNORE_TTL_SECONDS,
    InMemoryPendingStore,
    PendingConfirmation,
    RedisPendingStore,
    RegexConfirmParser,
    stash_pending,
)
from tests.contracts.rigs import client_of

ARGS = {"invoice_id": "INV-42"}


@pytest.fixture(params=["memory", "redis"])
def store(request):
    """Return a store of either kind."""
    if request.param == "memory":
        return InMemoryPendingStore()
    return RedisPendingStore(client=request.getfixturevalue("redis_client"), secret_keys=["key"])


class Desk:
    """The bot of the page: its model requests the deletion of the invoice once, and then answers `sunny`."""

    def __init__(self, store) -> None:
        self.deleted: list[str] = []
        deleted = self.deleted

        @tool(description="Delete an invoice (destructive)")
        def delete_invoice(invoice_id: str) -> PendingConfirmation:
            preview = f"Delete invoice {invoice_id}"
            stash_pending(
                kind="delete_invoice",
                preview=preview,
                executor=lambda: deleted.append(invoice_id),
                args={"invoice_id": invoice_id},
            )
            return PendingConfirmation(
                action="delete_invoice",
                preview=preview,
                user_prompt="Reply 'yes' to confirm or 'no' to cancel.",
            )

        self.model = ScriptedProvider([ToolCall("delete_invoice", ARGS), "sunny"])
        self.channel = ChannelAgent(Agent([delete_invoice], self.model), store=store)

    def say(self, words: str) -> str:
        """Send one webhook turn of user-1 and return the answer."""
        return self.channel.ask_channel("user-1", words).content


@pytest.fixture
def desk(store):
    """Return the bot after the turn that previews."""
    desk = Desk(store)
    assert "Delete invoice INV-42" in desk.say("delete invoice INV-42")
    return desk


def stash(store, executor=lambda: "deleted"):
    """Stash an action of user-1 that the page's buttons settle."""
    return store.stash(
        "user-1", kind="delete_invoice", preview="Delete it", args=ARGS, executor=executor
    )


@pytest.mark.parametrize("words", ["yes", "sim", "sí"])
def test_yes_runs_the_previewed_action_without_a_model_call(desk, words):
    """The first turn runs nothing, the second calls no model, and a third finds nothing to confirm."""
    assert desk.deleted == []
    assert len(desk.model.requests) == 1
    desk.say(words)
    assert (desk.deleted, len(desk.model.requests)) == (["INV-42"], 1)
    assert desk.say(words) == "sunny"
    assert desk.deleted == ["INV-42"]


@pytest.mark.parametrize("words", ["no", "não", "cancel"])
def test_no_drops_the_action_and_says_so(desk, words):
    """No model is called, and a later yes confirms nothing."""
    assert "Delete invoice INV-42" in desk.say(words)
    assert len(desk.model.requests) == 1
    assert (desk.say("yes"), desk.deleted) == ("sunny", [])


@pytest.mark.parametrize("words", ["what is the weather?", "si puedes borrar"])
def test_unrelated_message_drops_the_action_and_goes_to_the_model(desk, words):
    """No destructive action stays armed after an unrelated reply."""
    assert desk.say(words).endswith("sunny")
    assert (desk.channel.store.get("user-1"), desk.deleted) == (None, [])


@pytest.mark.parametrize("words", ["claro", "pode"])
def test_acknowledgement_runs_nothing_and_repeats_the_question_once(desk, words):
    """The reply may mean yes, so the question is repeated; a second such reply drops the action."""
    assert "Delete invoice INV-42" in desk.say(words)
    assert (desk.channel.store.get("user-1") is None, desk.deleted, len(desk.model.requests)) == (
        False,
        [],
        1,
    )
    assert desk.say(words).endswith("sunny")
    assert (desk.channel.store.get("user-1"), desk.deleted) == (None, [])


def test_record_binds_user_preview_and_arguments(desk):
    """It has the scope, the preview, a canonical SHA-256 of the arguments, its times, and the parser's version."""
    record = desk.channel.store.get("user-1")
    assert (record.user_id, record.kind, record.preview) == (
        "user-1",
        "delete_invoice",
        "Delete invoice INV-42",
    )
    assert record.args == ARGS
    assert record.args_digest == hashlib.sha256(b'{"invoice_id":"INV-42"}').hexdigest()
    assert 0 < record.expires_at - record.requested_at <= 61
    assert (record.ttl_seconds, record.parser_version) == (60, RegexConfirmParser().version)
    assert record.status == "pending"


@pytest.mark.parametrize(
    ("state", "status"),
    [
        ("armed", "pending"), ("shown", "pending"), ("claimed", "confirmed"), ("started", "confirmed"),
        ("done", "consumed"), ("failed", "consumed"), ("unknown", "consumed"), ("cancelled", "cancelled"),
        ("superseded", "cancelled"), ("expired", "expired"),
    ],
)  # fmt: skip
def test_status_has_the_values_of_the_page(state, status):
    """The status is pending, then confirmed, cancelled, expired or consumed."""
    assert replace(stash(InMemoryPendingStore()), state=state).status == status


def test_button_outcomes_are_those_of_the_page(store):
    """The outcome is None without an action, else executed with a result, cancelled with a preview, or ignored."""
    assert store.pop_if_intent("user-1", "confirm", expected_kind="delete_invoice") is None
    pid = stash(store).pending_action_id
    done = store.pop_if_intent("user-1", "confirm", expected_kind="delete_invoice", expected_id=pid)
    assert (done.executed, done.status, done.result) == (True, "executed", "deleted")
    stash(store)
    cancelled = store.pop_if_intent("user-1", "cancel", expected_kind="delete_invoice")
    assert (cancelled.executed, cancelled.status, cancelled.record.preview) == (
        False,
        "cancelled",
        "Delete it",
    )
    assert cancelled.record.status == "cancelled"
    stash(store)
    assert (
        store.pop_if_intent("user-1", "ignore", expected_kind="delete_invoice").status == "ignored"
    )
    assert store.pop_if_confirmed("user-1", "sim").executed


def test_unknown_intent_is_ignored_and_logged(store, caplog):
    """It neither runs nor drops the action, shortens the window to ten seconds, and logs a warning."""
    stash(store)
    with caplog.at_level(logging.WARNING):
        store.pop_if_intent("user-1", " IGNORE ", ignore_ttl_seconds=60)
    assert caplog.records == []
    before = store.get("user-1").expires_at
    with caplog.at_level(logging.WARNING):
        ignored = store.pop_if_intent("user-1", "explode")
    assert (ignored.status, ignored.executed) == ("ignored", False)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert before - ignored.record.expires_at > 60 - DEFAULT_IGNORE_TTL_SECONDS - 5
    assert DEFAULT_IGNORE_TTL_SECONDS == 10


def test_tightened_action_keeps_its_executor(store):
    """`tighten_ttl` returns the record with its new end, or None without a match; the action can still be confirmed."""
    assert store.tighten_ttl("user-1", 5) is None
    action = stash(store)
    assert store.tighten_ttl("user-1", 30, expected_id="A" * 22) is None
    tightened = store.tighten_ttl("user-1", 30, expected_id=action.pending_action_id)
    assert tightened.pending_action_id == action.pending_action_id
    assert 25 < action.expires_at - tightened.expires_at <= 31
    assert store.pop_if_confirmed("user-1", "yes").result == "deleted"
    assert store.tighten_ttl("user-1", 5) is None


def test_late_tighten_does_not_affect_a_newer_action(store):
    """The old id does not match, and the new question keeps its whole minute."""
    old = stash(store)
    store.drop("user-1")
    new = stash(store)
    assert store.tighten_ttl("user-1", 1, expected_id=old.pending_action_id) is None
    assert store.get("user-1") == new


def test_store_in_memory_keeps_five_thousand_scopes():
    """Only the oldest scope is dropped."""
    store = InMemoryPendingStore()
    for number in range(5001):
        store.stash(f"user-{number}", kind="k", preview="p")
    assert [store.get(f"user-{number}") is None for number in (0, 1, 5000)] == [True, False, False]


def test_restart_loses_what_was_in_memory(store):
    """Only Redis keeps the record for the next process, without a closure that could run."""
    stash(store)
    if isinstance(store, InMemoryPendingStore):
        assert InMemoryPendingStore().pop_if_confirmed("user-1", "yes") is None
        return
    other = RedisPendingStore(client=client_of(store), secret_keys=["key"])
    outcome = other.pop_if_confirmed("user-1", "yes")
    assert (outcome.status, outcome.executed) == ("no_executor", False)


class Bell:
    """A custom parser."""

    version = "bell-1"

    def is_confirm(self, msg: str) -> bool:
        return msg == "ding"

    def is_cancel(self, msg: str) -> bool:
        return msg == "dong"


def test_custom_parser_decides():
    """The protocol is two methods and a version, which the record contains."""
    desk = Desk(InMemoryPendingStore(parser=Bell()))
    desk.say("delete invoice INV-42")
    assert desk.channel.store.get("user-1").parser_version == "bell-1"
    desk.say("ding")
    assert desk.deleted == ["INV-42"]


@pytest.mark.parametrize(
    ("words", "confirms"), [("si", True), ("Sí.", True), ("si puedes", False), ("borra si", False)]
)
def test_si_confirms_only_as_the_whole_message(words, confirms):
    """Inside a sentence it is the conditional."""
    assert RegexConfirmParser().is_confirm(words) is confirms


def test_parser_version_names_its_languages():
    """The version ends with the page's `pt-en-es`, behind the version of Sayso's own table."""
    name, languages = RegexConfirmParser().version.split(":")
    assert (name.startswith("regex-v"), languages) == (True, "pt-en-es")


def test_prompt_of_a_pending_confirmation_is_shown(store):
    """`PendingConfirmation.user_prompt` stands between the preview and the instructions for answering."""

    @tool
    def wipe() -> PendingConfirmation:
        """Wipe the disk."""
        stash_pending(kind="wipe", preview="Wipe the disk", executor=lambda: "wiped")
        return PendingConfirmation(
            action="wipe", preview="Wipe the disk", user_prompt="Backups are 3 days old."
        )

    channel = ChannelAgent(Agent([wipe], ScriptedProvider([ToolCall("wipe")])), store=store)
    asked = channel.ask_channel("user-1", "wipe it").content
    assert asked.startswith("Wipe the disk\n\nBackups are 3 days old.\n\nReply ")
    assert "wiped" in channel.ask_channel("user-1", "yes").content


@pytest.mark.parametrize("preview", ["Wipe disk\u200b 1", "Wipe everything", ""])
def test_prompt_is_shown_with_the_stashed_preview(store, preview):
    """The question has the preview that was stashed, and the prompt's invisible characters are shown."""

    @tool
    def wipe() -> PendingConfirmation:
        """Wipe the disk."""
        stash_pending(kind="wipe", preview="Wipe disk\u200b 1", executor=lambda: "wiped")
        return PendingConfirmation(action="wipe", preview=preview, user_prompt="Sure\u202e?")

    channel = ChannelAgent(Agent([wipe], ScriptedProvider([ToolCall("wipe")])), store=store)
    asked = channel.ask_channel("user-1", "wipe it").content
    assert asked.startswith("Wipe disk⟨U+200B⟩ 1\n\nSure⟨U+202E⟩?\n\nReply ")
