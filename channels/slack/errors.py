"""Slack errors: what each answer of the Web API means for the reply that got it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from sayso.channels.base import (
    AddressClosed,
    ChannelDown,
    DeliveryUncertain,
    RateLimited,
    Refused,
    SendError,
    Unreachable,
)
from sayso.channels.http import never_sent

#: What is done about an error: `wait` as long as Slack asks; `down`: nobody can use this token; `scope`: it may not do
#: this; `closed`: nothing can be posted there; `plain`: the words once more without their form; `repost`: the message
#: that was to be edited cannot be, a new one can; `unclear`: some part may have happened. Any other error refuses.
SlackReaction = Literal["wait", "down", "scope", "closed", "plain", "repost", "unclear", "refused"]

_REACTIONS: Mapping[SlackReaction, tuple[str, ...]] = {
    "wait": ("ratelimited", "rate_limited", "message_limit_exceeded"),
    "down": (
        "token_revoked", "token_expired", "account_inactive", "invalid_auth", "not_authed", "org_login_required",
    ),
    "scope": ("missing_scope", "not_allowed_token_type"),
    "closed": (
        "channel_not_found", "is_archived", "user_not_found", "messages_tab_disabled", "not_in_channel",
        "user_not_in_channel", "cannot_reply_to_message", "thread_locked",
    ),
    "plain": (
        "no_text", "invalid_blocks", "invalid_blocks_format", "msg_blocks_too_long", "msg_too_long",
        "markdown_text_conflict",
    ),
    "repost": ("message_not_found", "cant_update_message", "edit_window_closed"),
    "unclear": ("internal_error", "fatal_error", "service_unavailable", "request_timeout"),
    # We hold on to no trigger, so these cannot come too late; the last is about one channel and one method.
    "refused": ("expired_trigger_id", "exchanged_trigger_id", "streaming_state_conflict", "no_permission"),
}  # fmt: skip
#: The reaction to each error that Slack names.
REACTIONS: Mapping[str, SlackReaction] = {code: reaction for reaction, codes in _REACTIONS.items() for code in codes}

#: What an operator can do about an error.
_CURES = {
    "not_in_channel": "invite the app to the channel",
    "messages_tab_disabled": "turn on the Messages Tab in App Home",
    "token_expired": "turn token rotation off, or copy the new bot_token",
    "no_permission": "invite the app to the channel",
    **dict.fromkeys(
        ("token_revoked", "account_inactive", "invalid_auth", "not_authed"),
        "install the app again and copy its bot_token",
    ),
}
_NO_JSON = "Slack's answer makes no sense"


@dataclass(frozen=True, slots=True)
class SlackAnswer:
    """What Slack said, named as the SDK names it. An answer that is no JSON object has no `data`."""

    api_url: str
    status_code: int
    headers: Mapping[str, str]
    data: dict[str, Any]

    @classmethod
    def of(cls, url: str, status: int, headers: Mapping[str, str], body: bytes) -> SlackAnswer:
        """An answer as it came."""
        try:
            data = json.loads(body)
        except ValueError:
            data = {}
        return cls(url, status, headers, data if isinstance(data, dict) else {})


@contextmanager
def told() -> Iterator[None]:
    """Errors of the SDK and of the network, told as ours. Raises SendError."""
    from aiohttp import ClientError
    from slack_sdk.errors import SlackApiError, SlackClientError

    try:
        yield
    except SlackApiError as exc:
        raise error_of(exc.response) from exc
    except SlackClientError as exc:
        raise DeliveryUncertain("no clear answer from Slack") from exc
    except (ClientError, OSError) as exc:
        raise _network_error(exc) from None  # it may name the address that a file was to go to


@contextmanager
def harmless() -> Iterator[None]:
    """The same for what shows nobody anything, or shows it once however often it is done: it may be tried again."""
    try:
        with told():
            yield
    except DeliveryUncertain as exc:
        raise Unreachable(str(exc)) from exc


def code_of(response: Any) -> str:
    """Slack's error code; anything that does not look like one may quote the message."""
    data = getattr(response, "data", None)
    code = str(data.get("error") or "") if isinstance(data, dict) else ""
    return code if re.fullmatch(r"\w{1,80}", code) else "unknown_error"


def reaction_to(code: str) -> SlackReaction:
    """What is done about an error of this code. `restricted_action` has many endings."""
    if code.startswith("restricted_action"):
        return "closed"
    return REACTIONS.get(code, "refused")


def error_of(response: Any) -> SendError:
    """What an answer means that is not the one we hoped for."""
    if not hasattr(response, "status_code"):  # the bare answer, of which the SDK could not read a word
        limited = response.status == 429
        return RateLimited(_retry_after(response.headers)) if limited else DeliveryUncertain(_NO_JSON)
    code, status = code_of(response), int(response.status_code)
    reaction = reaction_to(code)
    if status == 429 or reaction == "wait":
        return RateLimited(_retry_after(response.headers))
    if status >= 500 or reaction == "unclear":
        return DeliveryUncertain(f"Slack answered {code if status < 500 else status}")
    if not response.data:
        return DeliveryUncertain(_NO_JSON)
    return _kind(reaction, response)(f"Slack error {code}{_cure(code, response.data)}")


def _kind(reaction: SlackReaction, response: Any) -> type[SendError]:
    """Without the scope that words need the app can say nothing, so they wait for the cure; other methods have less
    to lose than their one call, and hold nothing up.
    """
    if reaction == "scope":
        return ChannelDown if "/chat." in str(response.api_url) else Refused
    return {"down": ChannelDown, "closed": AddressClosed}.get(reaction, Refused)


def _cure(code: str, data: Mapping[str, Any]) -> str:
    needed = str(data.get("needed") or "")
    if code == "missing_scope" and re.fullmatch(r"[\w:.,]{1,200}", needed):
        return f": add the scope {needed} and install the app again"
    return f": {_CURES[code]}" if code in _CURES else ""


def _retry_after(headers: Mapping[str, str]) -> float:
    seconds = next((value for name, value in headers.items() if name.lower() == "retry-after"), "1")
    return float(seconds) if seconds.isdecimal() else 1.0


def _network_error(exc: Exception) -> SendError:
    if never_sent(exc):
        return Unreachable("no connection to Slack")
    return DeliveryUncertain("the connection to Slack broke before its answer")
