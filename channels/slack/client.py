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

#: Where Slack's API, log-in and app pages are.
SLACK = "https://slack.com"
#: Where the files of a workspace are, by where its API is. https://slack-gov.com is GovSlack, for
#: the government of the United States.
FILE_ORIGINS = {
    SLACK: "https://files.slack.com",
    "https://slack-gov.com": "https://files.slack-gov.com",
}
#: What Sayso does about an error of Slack:
#:
#: * `wait`: the message was not taken, try again later;
#: * `down`: the token is not accepted, so that nothing can be sent until an operator acts;
#: * `scope`: the token lacks a scope, a permission of the app;
#: * `closed`: nothing can be posted at this address;
#: * `barred`: people can write in this thread, the app cannot (see AddressBarred);
#: * `chat_barred`: the app cannot write in any thread of this channel (see ChatBarred);
#: * `plain`: the blocks or the text have a form that Slack refuses, send the text without blocks;
#: * `unchangeable`: the message cannot be edited or deleted. An edit is sent as a new message;
#: * `unclear`: a part of the call may have happened;
#: * `refused`: every other error. This message will never be taken.
SlackReaction = Literal[
    "wait",
    "down",
    "scope",
    "closed",
    "barred",
    "chat_barred",
    "plain",
    "unchangeable",
    "unclear",
    "refused",
]
#: The error codes of each reaction.
_CODES: Mapping[SlackReaction, tuple[str, ...]] = {
    # `team_added_to_org`: while a workspace moves into an organization, calls fail now and then.
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
    "unchangeable": (
        "message_not_found",
        "cant_update_message",
        "edit_window_closed",
        "cant_delete_message",
        "compliance_exports_prevent_deletion",
    ),
    "unclear": ("internal_error", "fatal_error", "service_unavailable", "request_timeout"),
    # These are listed to show that they were considered: no trigger is stored, so none can expire,
    # and `no_permission` concerns one channel and one method.
    "refused": (
        "expired_trigger_id",
        "exchanged_trigger_id",
        "streaming_state_conflict",
        "no_permission",
    ),
}


def _reactions_by_code() -> dict[str, SlackReaction]:
    reactions: dict[str, SlackReaction] = {}
    for reaction, codes in _CODES.items():
        reactions |= dict.fromkeys(codes, reaction)
    return reactions


#: The reaction to each known error code.
REACTIONS: Mapping[str, SlackReaction] = _reactions_by_code()
#: Error codes for a token that is of no use to this channel. `not_allowed_token_type` is among
#: them, although its reaction is `scope`: it is a token of another kind.
TOKEN_ERRORS = (*_CODES["down"], "not_allowed_token_type")
_INSTALL_AGAIN = "install the app again and copy its bot_token"
#: What an operator can do about an error, by its code.
_CURES = {
    "not_in_channel": "invite the app to the channel",
    "no_permission": "invite the app to the channel",
    "messages_tab_disabled": "turn on the Messages Tab in App Home",
    "token_expired": "turn token rotation off, or copy the new bot_token",
    "token_revoked": _INSTALL_AGAIN,
    "account_inactive": _INSTALL_AGAIN,
    "invalid_auth": _INSTALL_AGAIN,
    "not_authed": _INSTALL_AGAIN,
    "team_access_not_granted": (
        "have an administrator of the organization add the app to this workspace"
    ),
}


def new_client(token: str | None, api_url: str | None, session: ClientSession) -> AsyncWebClient:
    """Return a client of Slack's Web API.

    * `token`: of the bot; None for calls that need none.
    * `api_url`: an origin in place of https://slack.com, None for Slack itself.
    * `session`: the pool of connections that it uses. The caller closes it.
    """
    # Here, not above: only processes that send on Slack load its SDK.
    from slack_sdk.web.async_client import AsyncWebClient

    logger = logging.getLogger("sayso.channels.slack.sdk")
    # The SDK logs whole messages at DEBUG.
    logger.setLevel(logging.CRITICAL)
    url = f"{api_url or SLACK}/api/"
    # The SDK's own retries would send a message twice without the outbox's knowledge.
    return AsyncWebClient(token, url, session=session, logger=logger, retry_handlers=[])


@contextmanager
def translated(chat: str) -> Iterator[None]:
    """Raise a SendError for an error of the SDK or of the network in this block.

    `chat` is the address that a message goes to. If many workspaces have installed the app, it
    names the workspace, and the error stops the replies of that workspace alone.
    """
    from aiohttp import ClientError
    from slack_sdk.errors import SlackApiError, SlackClientError

    try:
        yield
    except SlackApiError as exc:
        workspace = split_place(chat).team
        raise _for_workspace(_send_error(exc.response), workspace) from exc
    except (SlackClientError, AttributeError) as exc:
        # AttributeError: so the SDK fails on an answer in plain text.
        raise DeliveryUncertain("no clear answer from Slack") from exc
    except (ClientError, OSError) as exc:
        # Without the cause, which may name the URL of an upload.
        raise network_error("Slack", exc) from None


def _for_workspace(error: SendError, workspace: str) -> SendError:
    """Return the error so that it concerns one workspace, where there are many.

    `workspace` is "" for an app of one workspace. Its errors stay: they concern the whole channel.
    """
    if not workspace:
        return error
    if isinstance(error, RateLimited):
        # Slack counts the calls in each workspace separately.
        return ConversationRateLimited(error.retry_after)
    if isinstance(error, ChannelDown):
        # The cure of the text is for an app of one workspace.
        problem = str(error).partition(":")[0]
        return Refused(f"{problem} in {workspace}: have the app installed there again")
    return error


@contextmanager
def translated_repeatable(chat: str) -> Iterator[None]:
    """Raise a SendError as `translated` does, for calls that can be sent twice without harm.

    Such a call shows nothing new the second time. So a lost answer is Unreachable, which is sent
    again, and not DeliveryUncertain.
    """
    try:
        with translated(chat):
            yield
    except DeliveryUncertain as exc:
        raise Unreachable(str(exc)) from exc


def error_code(response: Any) -> str:
    """Return the error code in a response of the SDK, "" for none.

    It is safe to log. What does not look like a code may quote the message: it becomes
    `unknown_error`.
    """
    data = getattr(response, "data", None)
    if not isinstance(data, dict):
        return ""
    code = str(data.get("error") or "")
    if not code or re.fullmatch(r"\w{1,80}", code):
        return code
    return "unknown_error"


def reaction_to(code: str) -> SlackReaction:
    """Return what to do about an error code.

    Slack adds suffixes to `restricted_action` and may add more. An unknown one may be about threads
    alone, or about messages outside of threads alone, so it bars one thread and not the channel.
    """
    if code not in REACTIONS and code.startswith("restricted_action"):
        return "barred"
    return REACTIONS.get(code, "refused")


def _send_error(response: Any) -> SendError:
    """Return the error that a response means for a message: of the SDK, or of aiohttp."""
    unreadable = DeliveryUncertain("Slack's answer makes no sense")
    # A response of aiohttp: the SDK could not parse its body.
    if not hasattr(response, "status_code"):
        if response.status == 429:
            return RateLimited(retry_after(response.headers))
        return unreadable

    code = error_code(response) or "unknown_error"
    status = int(response.status_code)
    reaction = reaction_to(code)
    if status == 429 or reaction == "wait":
        return RateLimited(retry_after(response.headers))
    if status >= 500:
        return DeliveryUncertain(f"Slack answered {status}")
    if reaction == "unclear":
        return DeliveryUncertain(f"Slack answered {code}")
    if not (isinstance(response.data, dict) and response.data):
        return unreadable

    kinds: dict[SlackReaction, type[SendError]] = {
        "down": ChannelDown,
        "closed": AddressClosed,
        "barred": AddressBarred,
        "chat_barred": ChatBarred,
    }
    # Without the scope to send text, all replies must wait for the operator.
    if "/chat." in str(response.api_url):
        kinds["scope"] = ChannelDown
    kind = kinds.get(reaction, Refused)

    problem = f"Slack error {code}"
    cure = _CURES.get(code, "")
    needed = str(response.data.get("needed") or "")
    if code == "missing_scope" and re.fullmatch(r"[\w:.,]{1,200}", needed):
        cure = f"add the scope {needed} and install the app again"
    if cure:
        problem = f"{problem}: {cure}"
    return kind(problem)


def missing_scopes(needed: Mapping[str, Sequence[str]], header: str) -> dict[str, str]:
    """Return the scopes that a token lacks, each with a text that says what it is for.

    * `needed`: the features that need a scope, by the scope.
    * `header`: Slack's header x-oauth-scopes, the scopes of the token with commas between them.
    """
    scopes = {scope.strip() for scope in header.split(",")}
    missing = {}
    for scope, features in needed.items():
        if scope not in scopes:
            missing[scope] = f"{scope} (for {', '.join(features)})"
    return missing


def setup_problem(exc: Exception) -> Problem | None:
    """Return the problem and its cure that an error of the SDK means for an operator.

    None for an error that any platform may have, such as a lost connection.
    """
    response: Any = getattr(exc, "response", None)
    code = error_code(response)
    if code in ("ratelimited", "rate_limited") or getattr(response, "status_code", 0) == 429:
        return too_many_calls("Slack")
    if code:
        return (f"Slack refuses: {code}", "correct what it names")
    return None
