"""Setup of FakeTelegram: who the bot is, where its webhook goes and which commands it lists, in each language."""

from __future__ import annotations

import re
from typing import Any

from sayso.channels.fakes.base import Ledger
from sayso.channels.fakes.telegram_rules import UPDATES, RefusedError, check_commands, check_webhook, listed

#: What is kept of a bot: its webhook as getWebhookInfo tells it, which a test may add to, its commands by language, and
#: the updates that wait for who asks.
WEBHOOK, COMMANDS, WAITING = "telegram webhook", "telegram commands", "telegram updates"
METHODS = ("getMe", "setWebhook", "deleteWebhook", "getWebhookInfo", "setMyCommands", "getMyCommands")
_BOT = {
    "is_bot": True,
    "first_name": "Acme",
    "username": "acme_bot",
    "can_join_groups": True,
    "can_read_all_group_messages": False,
    "supports_inline_queries": False,
    "has_topics_enabled": False,
}
_NO_WEBHOOK = {"url": "", "has_custom_certificate": False, "pending_update_count": 0}


def answered(ledger: Ledger, bot_id: int, method: str, params: dict[str, Any]) -> Any:
    """The result of one of the `METHODS`. Raises RefusedError."""
    if method == "setWebhook":
        return _set(ledger, params)
    if method == "deleteWebhook":
        return _delete(ledger, params)
    if method == "getWebhookInfo":
        webhook = ledger.kept.get(WEBHOOK, _NO_WEBHOOK)
        return {**webhook, "pending_update_count": webhook["pending_update_count"] + len(ledger.kept.get(WAITING, ()))}
    if method == "setMyCommands":
        commands = listed(params.get("commands"), "commands")
        check_commands(commands)
        ledger.kept[COMMANDS] = {**ledger.kept.get(COMMANDS, {}), _language(params): commands}
        return True
    if method == "getMyCommands":
        return ledger.kept.get(COMMANDS, {}).get(_language(params), [])
    return {**_BOT, "id": bot_id}


def _language(params: dict[str, Any]) -> str:
    """Of whom the menu is; "" for everybody whose language has none of its own."""
    code = str(params.get("language_code", ""))
    if not re.fullmatch("(?:[a-z]{2})?", code):
        raise RefusedError("invalid language code specified")
    return code


def _set(ledger: Ledger, params: dict[str, Any]) -> bool:
    url = str(params.get("url", ""))
    if not url:
        return _delete(ledger, params)
    connections = str(params.get("max_connections", "40"))
    check_webhook(url, str(params.get("secret_token", "")), connections)
    before = ledger.kept.get(WEBHOOK, _NO_WEBHOOK)
    webhook = {**_NO_WEBHOOK, "url": url, "max_connections": int(connections)}
    webhook["pending_update_count"] = 0 if _true(params, "drop_pending_updates") else before["pending_update_count"]
    updates = _updates(params, before)
    ledger.kept[WEBHOOK] = {**webhook, "allowed_updates": updates} if updates else webhook
    return True


def _updates(params: dict[str, Any], before: dict[str, Any]) -> list[str]:
    """Which updates come: none told keeps what was asked for before, an empty list is the usual ones."""
    if "allowed_updates" not in params:
        return list(before.get("allowed_updates", []))
    updates = listed(params["allowed_updates"], "allowed updates")
    if unknown := set(updates) - UPDATES:  # Telegram passes over them: then the update never comes
        raise RefusedError(f"unknown allowed updates {sorted(unknown)}")
    return updates


def _delete(ledger: Ledger, params: dict[str, Any]) -> bool:
    before, dropped = ledger.kept.pop(WEBHOOK, _NO_WEBHOOK), _true(params, "drop_pending_updates")
    waiting = 0 if dropped else before["pending_update_count"]
    if dropped:
        ledger.kept.pop(WAITING, None)
    ledger.kept[WEBHOOK] = {**_NO_WEBHOOK, "pending_update_count": waiting}
    return True


def _true(params: dict[str, Any], name: str) -> bool:
    return str(params.get(name, "")).lower() in ("true", "1")
