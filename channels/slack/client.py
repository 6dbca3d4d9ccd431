"""Slack's Web API: its client over pooled connections, and what its errors mean.

An error of Slack becomes a SendError for the worker, which decides whether a reply is sent again,
and a problem with a cure for the operator.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from sayso.channels.base import (
    AddressBarred,
    AddressClosed,
    ChannelDown,
    ChatBarred,
    ConversationRateLimited,
    DeliveryUncertain,
    RateLimited,
    Refused,
    SendError,
    Unreachable,
    network_error,
)
from sayso.channels.setup import Problem, too_many_calls
from sayso.channels.slack.address import split_place
from sayso.infra.http import retry_after

if TYPE_CHECKING:
    from aiohttp import ClientSession
    from slack_sdk.web.async_client import AsyncWebClient

#: Slack's origin.
SLACK = "https://slack.com"
#: The origin of files for each of Slack's origins; https://slack-gov.com is GovSlack.
FILE_ORIGINS = {
    SLACK: "https://files.slack.com",
    "https://slack-gov.com": "https://files.slack-gov.com",
}
#: What follows from an error. `wait`: try again later. `down`: the token is not accepted. `scope`:
#: the token lacks a scope. `closed`: nothing can be posted there. `barred`: people can write there,
#: the app cannot. `chat_barred`: nor in another thread of the channel. `plain`: send the text again
#: without blocks. `repost`: the message cannot be edited, send a new one. `unclear`: a part may
#: have happened. All other errors are `refused`.
SlackReaction = Literal[
    "wait",
    "down",
    "scope",
    "closed",
    "barred",
    "chat_barred",
    "plain",
    "repost",
    "unclear",
    "refused",
]
_REACTIONS: Mapping[SlackReaction, tuple[str, ...]] = {
    # While a workspace moves into an organization, calls fail now and then.
    "wait": ("ratelimited", "rate_limited", "message_limit_exceeded", "team_added_to_org"),
    "down": (
        "token_revoked",
        "token_expired",
        "account_inactive",
        "invalid_auth",
        "not_authed",
        "org_login_required",
    ),
    "scope": ("missing_scope", "not_allowed_token_type"),
    "closed": (
        "channel_not_found",
        "is_archived",
        "user_not_found",
        "user_not_in_channel",
        "cannot_reply_to_message",
        "team_access_not_granted",
    ),
    "barred": ("thread_locked",),
    "chat_barred": (
        "messages_tab_disabled",
        "not_in_channel",
        "restricted_action",
        "restricted_action_read_only_channel",
    ),
    "plain": (
        "no_text",
        "invalid_blocks",
        "invalid_blocks_format",
        "msg_blocks_too_long",
        "msg_too_long",
        "markdown_text_conflict",
    ),
    "repost": (
        "message_not_found",
        "cant_update_message",
        "edit_window_closed",
        "cant_delete_message",
        "compliance_exports_prevent_deletion",
    ),
    "unclear": ("internal_error", "fatal_error", "service_unavailable", "request_timeout"),
    # No trigger is stored, so a trigger cannot expire;
    # `no_permission` concerns one channel and one method.
    "refused": (
        "expired_trigger_id",
        "exchanged_trigger_id",
        "streaming_state_conflict",
        "no_permission",
    ),
}
#: The reaction to each known error code.
REACTIONS: Mapping[str, SlackReaction] = {
    code: reaction for reaction, codes in _REACTIONS.items() for code in codes
}
#: Error codes for a token that Slack does not accept.
TOKEN_ERRORS = (*_REACTIONS["down"], "not_allowed_token_type")
#: What an operator can do about an error.
_CURES = {
    "not_in_channel": "invite the app to the channel",
    "messages_tab_disabled": "turn on the Messages Tab in App Home",
    "token_expired": "turn token rotation off, or copy the new bot_token",
    "no_permission": "invite the app to the channel",
    "team_access_not_granted": "have an administrator of the organization add the app to this workspace",
    **dict.fromkeys(
        ("token_revoked", "account_inactive", "invalid_auth", "not_authed"),
        "install the app again and copy its bot_token",
    ),
}


def new_client(token: str | None, api_url: str | None, session: ClientSession) -> AsyncWebClient:
    """Return a client of Slack's Web API with this token, None for calls that need none.

    `api_url` replaces https://slack.com.
    """
    from slack_sdk.web.async_client import AsyncWebClient

    logger = logging.getLogger("sayso.channels.slack.sdk")
    logger.setLevel(logging.CRITICAL)  # the SDK logs whole messages at DEBUG
    url = f"{api_url or SLACK}/api/"
    # The SDK's own retries would send a message twice without the outbox's knowledge.
    return AsyncWebClient(token, url, session=session, logger=logger, retry_handlers=[])


@contextmanager
def translated(chat: str) -> Iterator[None]:
    """Translate the errors of the SDK and of the network. Raises SendError.

    In many workspaces the `chat` names the one whose error it is: the others go on.
    """
    from aiohttp import ClientError
    from slack_sdk.errors import SlackApiError, SlackClientError

    try:
        yield
    except SlackApiError as exc:
        raise _of_workspace(_error_of(exc.response), split_place(chat).team) from exc
    except (SlackClientError, AttributeError) as exc:  # the SDK fails so on an answer in plain text
        raise DeliveryUncertain("no clear answer from Slack") from exc
    except (ClientError, OSError) as exc:
        raise network_error("Slack", exc) from None  # the cause may name the URL of an upload


def _of_workspace(error: SendError, workspace: str) -> SendError:
    """Return the error for one workspace among many.

    An error that would stop or slow down the whole channel becomes one of the workspace.
    """
    if not workspace:
        return error
    if isinstance(error, RateLimited):  # Slack counts the calls of each workspace by themselves
        return ConversationRateLimited(error.retry_after)
    if isinstance(error, ChannelDown):
        problem = str(error).partition(":")[0]
        return Refused(f"{problem} in {workspace}: have the app installed there again")
    return error


@contextmanager
def translated_repeatable(chat: str) -> Iterator[None]:
    """Translate the errors of calls that can be repeated: they show nothing, or always the same.

    Raises SendError, with Unreachable in place of DeliveryUncertain.
    """
    try:
        with translated(chat):
            yield
    except DeliveryUncertain as exc:
        raise Unreachable(str(exc)) from exc


def error_code(response: Any) -> str:
    """Return Slack's error code, "" for none.

    Anything that does not look like a code may quote the message.
    """
    data = getattr(response, "data", None)
    if isinstance(data, dict):
        code = str(data.get("error") or "")
    else:
        code = ""
    if re.fullmatch(r"\w{1,80}", code):
        return code
    if code:
        return "unknown_error"
    return ""


def reaction_to(code: str) -> SlackReaction:
    """Return what follows from an error code.

    `restricted_action` has many suffixes. Those that are not in the table may be about threads
    alone, or about messages outside of threads alone.
    """
    if code not in REACTIONS and code.startswith("restricted_action"):
        return "barred"
    return REACTIONS.get(code, "refused")


def _error_of(response: Any) -> SendError:
    unreadable = DeliveryUncertain("Slack's answer makes no sense")
    # Aiohttp's response, whose body the SDK could not parse.
    if not hasattr(response, "status_code"):
        if response.status == 429:
            return RateLimited(retry_after(response.headers))
        return unreadable
    code = error_code(response) or "unknown_error"
    status = int(response.status_code)
    reaction = reaction_to(code)
    if status == 429 or reaction == "wait":
        return RateLimited(retry_after(response.headers))
    if status >= 500 or reaction == "unclear":
        return DeliveryUncertain(f"Slack answered {code if status < 500 else status}")
    if not (isinstance(response.data, dict) and response.data):
        return unreadable
    kinds: dict[str, type[SendError]] = {
        "down": ChannelDown,
        "closed": AddressClosed,
        "barred": AddressBarred,
        "chat_barred": ChatBarred,
    }
    # Without the scope to send text, all replies must wait for the operator.
    if "/chat." in str(response.api_url):
        kinds["scope"] = ChannelDown
    cure = _CURES.get(code, "")
    needed = str(response.data.get("needed") or "")
    if code == "missing_scope" and re.fullmatch(r"[\w:.,]{1,200}", needed):
        cure = f"add the scope {needed} and install the app again"
    return kinds.get(reaction, Refused)(f"Slack error {code}{f': {cure}' if cure else ''}")


def missing_scopes(needed: Mapping[str, Sequence[str]], header: str) -> dict[str, str]:
    """Return the scopes that Slack's header x-oauth-scopes lacks, each with what it is for.

    `needed`: what needs each scope.
    """
    given = {scope.strip() for scope in header.split(",")}
    missing = {}
    for scope, users in needed.items():
        if scope not in given:
            missing[scope] = f"{scope} (for {', '.join(users)})"
    return missing


def setup_problem(exc: Exception) -> Problem | None:
    """Return what an error of the SDK means for an operator, None if it could be of any platform."""
    response: Any = getattr(exc, "response", None)
    code = error_code(response)
    if code in ("ratelimited", "rate_limited") or getattr(response, "status_code", 0) == 429:
        return too_many_calls("Slack")
    if code:
        return (f"Slack refuses: {code}", "correct what it names")
    return None
