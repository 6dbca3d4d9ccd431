"""Queue of FakeTelegram: the updates that wait for who asks, by the rules of getUpdates."""

from __future__ import annotations

import threading
from typing import Any

from sayso.channels.fakes.base import Ledger
from sayso.channels.fakes.telegram_rules import UPDATES, ConflictError, RefusedError, listed
from sayso.channels.fakes.telegram_setup import WAITING, WEBHOOK

_ALLOWED = "telegram allowed updates"
#: Kinds of update that come where none are named.
_USUAL = UPDATES - {"chat_member", "message_reaction", "message_reaction_count"}


class UpdateQueue:
    """One bot's updates, kept in the ledger. One caller at a time waits for them: the newest."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._changed = threading.Condition()
        self._asked = 0

    def add(self, update: dict[str, Any]) -> None:
        """Something happens. Of a kind that was not asked for, the bot never hears."""
        with self._changed:
            if update.keys() & set(self._ledger.kept.get(_ALLOWED) or _USUAL):
                self._waiting().append(update)
            self._changed.notify_all()

    def ask(self, params: dict[str, Any]) -> list[dict[str, Any]]:
        """What waits, at once or as soon as something comes. Raises RefusedError, ConflictError."""
        offset, limit, seconds = (_number(params, *each) for each in _NUMBERS)
        with self._changed:
            self._refuse_beside_a_webhook("can't use getUpdates method while webhook is active; use deleteWebhook")
            if "allowed_updates" in params:
                self._allow(listed(params["allowed_updates"], "allowed updates"))
            self._forget(offset)
            self._asked += 1
            mine = self._asked
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._waiting() or self._asked != mine or self._has_webhook(), seconds)
            if self._asked != mine:
                raise ConflictError(
                    "terminated by other getUpdates request; make sure that only one bot instance is running"
                )
            self._refuse_beside_a_webhook("terminated by setWebhook request")
            return self._waiting()[:limit]

    def look_again(self) -> None:
        """A webhook may have been set: whoever waits is told."""
        with self._changed:
            self._changed.notify_all()

    def _waiting(self) -> list[dict[str, Any]]:
        waiting: list[dict[str, Any]] = self._ledger.kept.setdefault(WAITING, [])
        return waiting

    def _has_webhook(self) -> bool:
        return bool(self._ledger.kept.get(WEBHOOK, {}).get("url"))

    def _refuse_beside_a_webhook(self, words: str) -> None:
        if self._has_webhook():
            raise ConflictError(words)

    def _allow(self, kinds: list[Any]) -> None:
        if unknown := set(kinds) - UPDATES:  # Telegram passes over them: then the update never comes
            raise RefusedError(f"unknown allowed updates {sorted(unknown)}")
        self._ledger.kept[_ALLOWED] = kinds

    def _forget(self, offset: int) -> None:
        """Those before the offset; below 0 it counts from the end."""
        waiting = self._waiting()
        waiting[:] = waiting[offset:] if offset < 0 else [each for each in waiting if each["update_id"] >= offset]


#: The numbers that getUpdates takes: name, default, least and most. Telegram takes the nearest one in range: a caller
#: does not mean that.
_NUMBERS = (("offset", 0, -100, 2**31 - 1), ("limit", 100, 1, 100), ("timeout", 0, 0, 50))


def _number(params: dict[str, Any], name: str, default: int, least: int, most: int) -> int:
    number = int(params.get(name, default))
    if not least <= number <= most:
        raise RefusedError(f"{name} must be between {least} and {most}")
    return number
