"""The web pages of Slack apps that many workspaces install: /slack/install and its callback.

The first page sends a browser to Slack, and Slack sends it back to the second one, which installs
the app. What is checked and stored is in `install.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import flask
from redis.exceptions import RedisError

from sayso.channels.slack.adapter import SlackChannel
from sayso.channels.slack.install import STATE_SECONDS, InstallFlow, InstallRefused
from sayso.channels.slack.installations import Installation
from sayso.channels.slack.setup import redirect_url
from sayso.channels.web.pages import Link, harden, small_page

log = logging.getLogger(__name__)

#: How many installations of one app may begin in a minute in one process, since each is stored for
#: STATE_SECONDS. Those with a valid invitation do not count.
STARTS_PER_MINUTE = 60
#: How many browsers may come back in a minute in one process, since each costs a call to Slack.
#: Those whose installation never began are counted separately.
RETURNS_PER_MINUTE = 120


def install_pages(*channels: SlackChannel, public_url: str = "", **_: Any) -> flask.Blueprint:
    """Return the pages of all channels whose apps many workspaces install.

    These are /slack/<name>/install, and /slack/install for the first channel. An app with a
    bot_token has no pages. `public_url` is the address at which browsers reach the bot.
    """
    flows = {}
    for channel in channels:
        if channel.installations:
            flows[channel.name] = InstallFlow(
                channel.name,
                channel.settings,
                channel.installations,
                redirect_url(public_url, channel.name),
            )
    pages = flask.Blueprint("slack", __name__)
    if flows:
        views = InstallViews(flows, is_encrypted=public_url.startswith("https:"))
        pages.add_url_rule("/slack/install", view_func=views.install_first)
        pages.add_url_rule("/slack/<name>/install", view_func=views.install)
        pages.add_url_rule("/slack/<name>/oauth_redirect", view_func=views.oauth_redirect)
    pages.register_error_handler(RedisError, _not_stored)
    # Pages are hardened where they are made, redirects here.
    pages.after_request(harden)
    return pages


class InstallViews:
    """The views of all apps. One per process. It counts requests in memory.

    `flows` are by the name of the channel. `is_encrypted` says whether browsers come over https.
    """

    def __init__(self, flows: Mapping[str, InstallFlow], *, is_encrypted: bool) -> None:
        # Imported here, since a bot whose app has a bot_token has no such library.
        from limits import RateLimitItemPerMinute
        from limits.storage import MemoryStorage
        from limits.strategies import MovingWindowRateLimiter

        self._flows = flows
        self._is_encrypted = is_encrypted
        self._per_minute = RateLimitItemPerMinute
        self._limiter = MovingWindowRateLimiter(MemoryStorage())

    def install_first(self) -> flask.Response:
        """Send the browser to Slack's page for the app of the first channel."""
        return self.install(next(iter(self._flows)))

    def install(self, name: str) -> flask.Response:
        """Send the browser to Slack's page."""
        flow = self._flow(name)
        invitation = flask.request.args.get("invitation", "")
        if not flow.is_invited(invitation) and not self._admit(name, "start", STARTS_PER_MINUTE):
            return _too_many()
        cookie = flask.request.cookies.get(self._cookie(name), "")
        try:
            start = flow.begin(invitation, cookie)
        except InstallRefused as exc:
            return _refusal(name, flow, exc)

        response = flask.make_response(flask.redirect(start.url))
        response.set_cookie(
            self._cookie(name),
            start.cookie,
            max_age=STATE_SECONDS,
            path="/",
            secure=self._is_encrypted,
            httponly=True,
            # Slack's page sends the browser back. With "Strict" it would come without the cookie.
            samesite="Lax",
        )
        return response

    def oauth_redirect(self, name: str) -> flask.Response:
        """Install the app into the workspace that the person chose at Slack."""
        flow = self._flow(name)
        # A mail filter may look at a link before the browser opens it. That must not use up the
        # state.
        if flask.request.method == "HEAD":
            return flask.make_response("")
        # Requests with an invented state must not take the places of those that have begun.
        is_known = flow.is_valid_state(flask.request.args.get("state", ""))
        kind = "return" if is_known else "made-up return"
        if not self._admit(name, kind, RETURNS_PER_MINUTE):
            return _too_many()
        cookie = flask.request.cookies.get(self._cookie(name), "")
        try:
            installation = flow.finish(flask.request.args, cookie)
        except InstallRefused as exc:
            return _refusal(name, flow, exc)
        return _success(installation, flow.site)

    def _flow(self, name: str) -> InstallFlow:
        """Return the flow of a channel. Answers 404 for any other name."""
        flow = self._flows.get(name)
        if flow is None:
            flask.abort(404)
        return flow

    def _admit(self, name: str, kind: str, per_minute: int) -> bool:
        """Count one request of a kind. Return False for one too many in this minute."""
        return self._limiter.hit(self._per_minute(per_minute), name, kind)

    def _cookie(self, name: str) -> str:
        """Return the name of the cookie by which a browser is recognized."""
        # Browsers let no other host set a cookie with this prefix.
        prefix = "__Host-" if self._is_encrypted else ""
        return f"{prefix}sayso_slack_{name}"


def _success(installation: Installation, site: str) -> flask.Response:
    """Return the page that says what to do after the installation."""
    where = installation.name or installation.id
    app = quote(installation.app_id, safe="")
    if installation.is_organization:
        lines = [
            "An organization decides next which of its workspaces have the app.",
            "Choose them on the page below.",
            "Then people find it in Slack under Apps, and write to it.",
            "It asks before it changes anything.",
        ]
        settings = f"https://app.slack.com/manage/{installation.id}/integrations/profile/{app}"
        link = Link(f"{settings}/workspaces/add", "Add the app to workspaces")
        return small_page(f"Installed in {where}", lines, link=link)
    lines = [
        "Write to it now: open it in Slack and say what you want.",
        "It asks before it changes anything.",
        "In a channel, invite it with /invite and its name, then mention it.",
    ]
    url = f"{site}/app_redirect?app={app}&team={installation.id}"
    return small_page(f"Installed in {where}", lines, link=Link(url, "Open it in Slack"))


def _refusal(name: str, flow: InstallFlow, refusal: InstallRefused) -> flask.Response:
    """Return the page that says why nothing was installed, and how to begin again."""
    log.info("workspace.install_refused", extra={"channel": name, "reason": refusal.reason})
    lines = [refusal.says]
    link = None
    if not flow.needs_invitation:
        link = Link(flask.url_for("slack.install", name=name), "Begin again")
    elif refusal.may_begin_again:
        # No link: it would hold the invitation, a secret whose hash alone is known here.
        lines.append("To begin again, open the link of your invitation.")
    return small_page("Not installed", lines, status=refusal.status, link=link)


def _not_stored(error: RedisError) -> flask.Response:
    """Return the page that says that nothing was installed, because Redis did not answer.

    An invitation still works.
    """
    log.error("web.storage_down", extra={"reason": type(error).__name__})
    says = "The bot cannot store anything at the moment."
    cure = "Wait a minute, then open the link again with which you began."
    response = small_page("Not installed", [f"{says} {cure}"], status=503)
    response.headers["Retry-After"] = "60"
    return response


def _too_many() -> flask.Response:
    says = "Too many installations at once: try again in a minute."
    response = small_page("Not installed", [says], status=429)
    response.headers["Retry-After"] = "60"
    return response
