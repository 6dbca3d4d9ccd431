"""What an operator does with a Slack app.

SlackSetup checks the token of an app and its scopes, which are what the app may do. SlackApps
creates and updates an app by its manifest, a JSON object with all settings of the app at Slack.
`manifest` makes it from the methods, events and features that Sayso uses.
"""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any
from urllib.parse import quote

from sayso.channels.setup import (
    FORGED,
    MAX_CHARS,
    CheckResult,
    MessageLog,
    PlatformSetup,
    Problem,
    SetupError,
    SetupOptions,
    bare_url,
    check_https,
    check_outside,
    connection_problem,
    hook_url,
    platform_calls,
)
from sayso.channels.slack.client import (
    TOKEN_ERRORS,
    error_code,
    missing_scopes,
    new_client,
    reaction_to,
    setup_problem,
)
from sayso.channels.slack.incoming import slack_hook
from sayso.channels.slack.settings import InstallSettings, SlackSettings, View
from sayso.channels.types import SignedWebhook
from sayso.infra.http import PooledSessions, never_sent
from sayso.infra.terminal import one_line

#: The environment variable with the token with which SlackApps calls Slack. The token is valid for
#: 12 hours, and never stored.
CONFIG_VARIABLE = "SLACK_CONFIG_TOKEN"
#: Slack's web page with a person's apps and their configuration tokens.
APPS_PAGE = "https://api.slack.com/apps"
#: Slack's limit of an app's name, in characters.
NAME_LIMIT = 35
#: Slack's limit of the name of an app's bot, in characters.
BOT_LIMIT = 80
#: Slack's limit of a slash command, with its slash, in characters.
COMMAND_LIMIT = 32
#: The default name of the slash command.
COMMAND = "/sayso"
#: The methods of Slack that Sayso calls, each with the scopes that it needs. A test compares them
#: with the source.
METHODS: dict[str, tuple[str, ...]] = {
    "agents.sessions.setStatus": ("chat:write",),
    "assistant.threads.setStatus": ("chat:write",),
    "auth.revoke": (),
    "auth.test": (),
    "chat.delete": ("chat:write",),
    "chat.postEphemeral": ("chat:write",),
    # The second scope is for a person's id as chat: Slack opens the direct message first.
    "chat.postMessage": ("chat:write", "im:write"),
    "chat.update": ("chat:write",),
    "conversations.open": ("im:write",),
    "files.completeUploadExternal": ("files:write",),
    "files.getUploadURLExternal": ("files:write",),
    "files.info": ("files:read",),
    "usergroups.users.list": ("usergroups:read",),
}
#: The methods that only an app calls whose groups give people a role.
_GROUP_METHODS = frozenset({"usergroups.users.list"})
#: The scope for events about public channels.
_PUBLIC_CHANNELS = "channels:read"
#: The scope for events about private channels. Slack's API still calls them groups.
_PRIVATE_CHANNELS = "groups:read"
#: The events that the app subscribes to, each with the scopes without which Slack does not send it.
EVENTS: dict[str, tuple[str, ...]] = {
    "agent_session_stopped": (),
    "app_context_changed": (),
    "app_home_opened": (),
    "app_mention": ("app_mentions:read",),
    "app_uninstalled": (),
    "assistant_thread_context_changed": (),
    "assistant_thread_started": (),
    "channel_archive": (_PUBLIC_CHANNELS,),
    "channel_deleted": (_PUBLIC_CHANNELS,),
    "channel_id_changed": (_PUBLIC_CHANNELS,),
    "channel_left": (_PUBLIC_CHANNELS,),
    "channel_unarchive": (_PUBLIC_CHANNELS,),
    "group_archive": (_PRIVATE_CHANNELS,),
    "group_deleted": (_PRIVATE_CHANNELS,),
    "group_left": (_PRIVATE_CHANNELS,),
    "group_unarchive": (_PRIVATE_CHANNELS,),
    "member_joined_channel": (_PUBLIC_CHANNELS, _PRIVATE_CHANNELS),
    "member_left_channel": (_PUBLIC_CHANNELS, _PRIVATE_CHANNELS),
    "message.channels": ("channels:history",),
    "message.groups": ("groups:history",),
    "message.im": ("im:history",),
    "message.mpim": ("mpim:history",),
    "tokens_revoked": (),
}
#: Features that need no method and no event, each with the scopes that it needs.
FEATURES: dict[str, tuple[str, ...]] = {
    "slash commands and shortcuts": ("commands",),
    "files from people": ("files:read",),
}
#: Events that only apps with this view can subscribe to. Slack requires them there, apart from two:
#: `agent_session_stopped` brings the stop button, `app_context_changed` what a person looks at.
_VIEW_EVENTS: dict[View, tuple[str, ...]] = {
    "agent": ("agent_session_stopped", "app_context_changed", "app_home_opened"),
    "assistant": ("assistant_thread_context_changed", "assistant_thread_started"),
    "none": (),
}
#: The scope that Slack requires for an app with a view, and refuses for one without.
VIEW_SCOPE = "assistant:write"
#: What Slack shows above the text field of a person who has written nothing yet. A tap on it sends
#: the message.
SUGGESTED_PROMPTS = [{"title": "What can you do?", "message": "What can you do for me?"}]
_DESCRIPTION = "Does what you ask, and asks before it destroys anything."
_COMMAND = re.compile(r"/[a-z0-9_-]+")
_APP_ID = re.compile(r"[A-Z0-9]{2,40}")
_CONFIG_TOKEN_CURE = (
    f"under Your App Configuration Tokens at {APPS_PAGE} generate one for your workspace, "
    "or press Refresh, and export its Access Token (xoxe.xoxp-…, not the Refresh Token) "
    f"as {CONFIG_VARIABLE}; it is valid for 12 hours"
)
_APP_CURE = (
    "use the App ID in its Basic Information, and a token of a person who may change that app"
)
#: Slack's error codes for an App ID that it does not take.
_APP_ERRORS = (
    "invalid_app_id",
    "invalid_app",
    "app_not_eligible",
    "app_not_owned_by_manager_app",
    "app_not_found",
)
#: The cures for faults that Slack finds in a manifest: the beginning of the fault's place in the
#: manifest, and the cure. The first match counts.
_FAULT_CURES = (
    ("/display_information/name", "give another --name"),
    ("/features/bot_user", "give another --name"),
    ("/features/slash_commands", "give another --command"),
    (
        "/features/agent_view",
        "give --view assistant if this app has that view, --view none if it has neither view",
    ),
    (
        "/features/assistant_view",
        "leave out --view assistant: an app keeps this view, but cannot go back to it",
    ),
    ("/settings/event_subscriptions/bot_events", "give the --view that the app has"),
    ("/oauth_config/scopes/bot", "give the --view that the app has"),
    (
        "/settings",
        "check that public_url is the https address at which the bot answers from outside",
    ),
)
#: The cure for a fault at any other place.
_NO_CURE = (
    "Slack changed its rules: see https://docs.slack.dev/reference/app-manifest, "
    "and paste a corrected one there"
)
#: A manifest, as Slack's JSON.
AppManifest = dict[str, Any]


class SlackSetup(PlatformSetup):
    """Checks one Slack app, and says what to set by hand. Slack lets no bot set its webhook."""

    def __init__(
        self, name: str, settings: SlackSettings, public_url: str, options: SetupOptions
    ) -> None:
        super().__init__(name, public_url)
        self._settings = settings
        self._public_url = public_url
        self._state = options.state
        self._scopes = scopes(settings.view, reads_groups=bool(settings.role_groups))
        token = None
        if settings.bot_token:
            token = settings.bot_token.get_secret_value().strip()
        self._web = PooledSessions(partial(new_client, token, settings.api_url))

    async def set_webhook(self) -> list[str]:
        """Return what to set by hand. Raises SetupError for a URL that Slack cannot reach."""
        if not self._settings.api_url:
            check_outside(self._url)
            check_https("Slack", self._url)
        return [
            f"Slack does not let a bot's token set this. At {APPS_PAGE}, in your app:",
            f"  Event Subscriptions   on; Request URL {self._url}",
            f"                        bot events: {' '.join(events(self._settings.view))}",
            f"  Interactivity         on; Request URL {self._url}",
            f"  Slash Commands        each with Request URL {self._url}",
            "  App Home              Messages Tab on, and messages from people allowed",
            f"  OAuth & Permissions   bot scopes: {' '.join(self._scopes)}",
            *self._install_steps(),
            f"Or paste the output of `sayso channel manifest {self._name}` under App Manifest: "
            "it has all of this.",
        ]

    def _install_steps(self) -> list[str]:
        """Return how the app is installed after its settings are made."""
        if not self._settings.has_many_workspaces:
            return ["Then install the app to the workspace again."]
        redirect = redirect_url(self._public_url, self._name)
        where = where_to_install(self._settings, self._public_url, self._name)
        return [
            f"                        redirect URL {redirect}",
            "  Manage Distribution   activate public distribution: other workspaces may install it",
            f"Then have it installed: {where}",
        ]

    async def check(self) -> list[CheckResult]:
        """Check the token and its scopes, or those of each workspace that has installed the app.

        The results also name the settings that Slack does not show.
        """
        if self._settings.has_many_workspaces:
            results = await self._check_workspaces()
        else:
            results = await self._check_token()
        # The first result is about the token, or about all workspaces together. Without a token that
        # works, the other settings are not the problem.
        if results[0].state == "fail":
            return results
        webhook = f"Slack does not show its Request URL, which must be {bare_url(self._url)}"
        tab = "Slack does not show it; App Home, Messages Tab must be on for direct messages"
        return [*results, self._ok("webhook", webhook), self._ok("messages tab", tab)]

    async def _check_workspaces(self) -> list[CheckResult]:
        """Check each installation of the app."""
        # Here, so that they are not loaded for an app of one workspace.
        from redis.exceptions import RedisError

        from sayso.channels.slack.installations import SlackInstallations
        from sayso.channels.slack.workspaces import WorkspaceChecks

        says = "the installations are not known, because Redis does not answer"
        cure = "set REDIS_URL, or run `sayso up`"
        if self._state is None:
            return [self._warn("workspaces", says, cure, id="workspaces-unknown")]
        state = self._state
        try:
            installations = SlackInstallations(
                self._name,
                state.redis,
                state.keys,
                state.key_prefix,
            )
        except ImportError:
            # The library that decrypts tokens is optional. `sayso check` names it.
            says = "the installations cannot be decrypted: a library is missing"
            return [self._warn("workspaces", says, "see `sayso check`", id="workspaces-unknown")]
        checks = WorkspaceChecks(
            self._name,
            self._settings,
            installations,
            installed_at=where_to_install(self._settings, self._public_url, self._name),
            scopes=self._scopes,
        )
        try:
            return [result async for result in checks.results()]
        except RedisError:
            return [self._warn("workspaces", says, cure, id="workspaces-unknown")]

    async def _check_token(self) -> list[CheckResult]:
        """Check the bot_token and its scopes."""
        try:
            async with platform_calls("Slack", _token_problem):
                answer = await self._web.here().auth_test()
        except SetupError as exc:
            return [self._fail("token", exc.says, exc.cure)]
        headers = {name.lower(): value for name, value in answer.headers.items()}
        user = answer.get("user") or answer.get("user_id")
        team = answer.get("team") or answer.get("team_id")
        return [
            self._ok("token", f"bot @{user} in {team}"),
            self._check_scopes(str(headers.get("x-oauth-scopes", ""))),
            *[await self._check_group(group) for group in self._settings.role_groups],
        ]

    async def _check_group(self, group: str) -> CheckResult:
        """Check whether Slack says who is in a user group from which a role comes."""
        try:
            async with platform_calls("Slack", setup_problem):
                answer = await self._web.here().usergroups_users_list(usergroup=group)
        except SetupError as exc:
            says = f"nobody can decide by the group {group}: {exc.says}"
            cure = "check the id, and that the token has the scope usergroups:read"
            return self._fail("group", says, cure)
        members = answer.get("users") or []
        if not members:
            says = f"nobody can decide by the group {group}: it has no people"
            return self._warn("group", says, "add people to the user group")
        return self._ok("group", f"{group} has {len(members)} people")

    async def delete_webhook(self) -> list[str]:
        """Return what to set by hand."""
        return [
            f"Slack does not let a bot's token unset this. At {APPS_PAGE}, in your app:",
            "  Event Subscriptions   off",
            "  Interactivity         off",
            "  Slash Commands        delete each",
        ]

    def probe(self, now: float, *, forged: bool = False) -> SignedWebhook | None:
        """Return the request with which Slack itself checks that a URL belongs to the app."""
        secret = self._settings.signing_secret.get_secret_value().strip()
        if forged:
            secret = FORGED
        body = json.dumps({"type": "url_verification", "challenge": "sayso-doctor"}).encode()
        return slack_hook(secret, body, now)

    def message_log(self) -> MessageLog:
        """Raise SetupError: Slack gives bots no log."""
        raise SetupError(
            "Slack has no list of events: "
            "it repeats what the bot did not accept three times, within 5 minutes",
            'turn on "Delayed Events" in the app for hourly repetitions; '
            "only the workspace can delete files there",
        )

    def _check_scopes(self, header: str) -> CheckResult:
        """Check that the token has all scopes. `header` is Slack's header x-oauth-scopes."""
        needed = self._scopes
        missing = missing_scopes(needed, header)
        if not missing:
            return self._ok("scopes", f"all {len(needed)} that it needs")
        cure = (
            "add them under OAuth & Permissions and install again; "
            f"`sayso channel manifest {self._name}` lists all"
        )
        if VIEW_SCOPE in missing:
            rule = f"Slack gives {VIEW_SCOPE} only to apps with a view"
            cure = f"{cure}; {rule}: for one without, write view: none"
        return self._fail("scopes", f"missing: {'; '.join(missing.values())}", cure)


def _token_problem(exc: Exception) -> Problem | None:
    """Return what an error of a call with the bot_token means, None if any platform may have it."""
    code = error_code(getattr(exc, "response", None))
    if code in TOKEN_ERRORS:
        return (
            f"Slack does not take the bot_token ({code})",
            "copy the Bot User OAuth Token (xoxb-…) after an install",
        )
    return setup_problem(exc)


def install_url(public_url: str, channel: str) -> str:
    """Return the address at which a browser begins to install the app of a channel."""
    return f"{public_url}/slack/{quote(channel, safe='')}/install"


def where_to_install(settings: SlackSettings, public_url: str, channel: str) -> str:
    """Return where the app of a channel is installed, for an operator to read.

    It is an address or, if an invitation is needed, the command that prints the link of one.
    """
    if settings.install_rules and settings.install_rules.invited:
        return f"with the link of `sayso channel invite {channel}`"
    return install_url(public_url, channel)


def redirect_url(public_url: str, channel: str) -> str:
    """Return the address to which Slack sends the browser back after an installation."""
    return f"{public_url}/slack/{quote(channel, safe='')}/oauth_redirect"


def manifest(
    channel: str,
    public_url: str,
    *,
    name: str,
    command: str = COMMAND,
    view: View = "agent",
    install: InstallSettings | None = None,
    reads_groups: bool = False,
) -> AppManifest:
    """Return the manifest of a channel's app. Raises SetupError for values that Slack would refuse.

    * `name`: the app's name, which people see.
    * `command`: the slash command.
    * `install`: who may install the app, None for an app of one workspace.
    * `reads_groups`: whether user groups give people a role.
    """
    _check_names(name, command, public_url)
    url = hook_url(public_url, channel)
    # Slack takes fewer characters in the name of the bot than in that of the app.
    bot = re.sub(r"[^A-Za-z0-9 ._-]", "", name).strip() or "sayso"
    redirects = {}
    if install:
        redirects = {"redirect_urls": [redirect_url(public_url, channel)]}
    return {
        "_metadata": {"major_version": 1, "minor_version": 1},
        "display_information": {"name": name, "description": _DESCRIPTION},
        "features": {
            "app_home": {
                "home_tab_enabled": False,
                # Without it people cannot write to the bot directly.
                "messages_tab_enabled": True,
                "messages_tab_read_only_enabled": False,
            },
            "bot_user": {"display_name": bot[:BOT_LIMIT], "always_online": True},
            "slash_commands": [
                {
                    "command": command,
                    "url": url,
                    "description": "Ask the bot; alone it lists what it can do",
                    "usage_hint": "[what you want]",
                    "should_escape": True,
                }
            ],
            **_view_feature(view),
        },
        "oauth_config": {
            **redirects,
            "scopes": {"bot": list(scopes(view, reads_groups=reads_groups))},
        },
        "settings": {
            "event_subscriptions": {"request_url": url, "bot_events": events(view)},
            "interactivity": {
                "is_enabled": True,
                "request_url": url,
                "message_menu_options_url": url,
            },
            "org_deploy_enabled": bool(install and install.org_deploy),
            "socket_mode_enabled": False,
            "token_rotation_enabled": bool(install and install.token_rotation),
        },
    }


def _view_feature(view: View) -> AppManifest:
    """Return the part of `features` that chooses the view. An app without a view has none."""
    match view:
        case "agent":
            feature = {"agent_description": _DESCRIPTION, "suggested_prompts": SUGGESTED_PROMPTS}
            return {"agent_view": feature}
        case "assistant":
            return {"assistant_view": {"assistant_description": _DESCRIPTION}}
        case "none":
            return {}


def _check_names(name: str, command: str, public_url: str) -> None:
    """Raise SetupError for names and a URL that Slack would refuse."""
    if not 1 <= len(name) <= NAME_LIMIT:
        raise SetupError(
            f"the name has {len(name)} characters", f"give 1 to {NAME_LIMIT} with --name"
        )
    if not _COMMAND.fullmatch(command) or len(command) > COMMAND_LIMIT:
        cure = f"give a slash and up to {COMMAND_LIMIT - 1} lower-case letters, digits, _ and -"
        raise SetupError(f"--command {command!r} is no slash command", cure)
    check_https("Slack", public_url)


def events(view: View) -> list[str]:
    """Return the events that an app with this view subscribes to."""
    of_other_views: set[str] = set()
    for other, names in _VIEW_EVENTS.items():
        if other != view:
            of_other_views.update(names)
    return [event for event in EVENTS if event not in of_other_views]


def scopes(view: View, *, reads_groups: bool = False) -> dict[str, list[str]]:
    """Return each scope that the bot needs, with the methods, events and features that need it.

    `reads_groups`: whether user groups give people a role.
    """
    methods = METHODS
    if not reads_groups:
        methods = {name: METHODS[name] for name in METHODS if name not in _GROUP_METHODS}
    subscribed = {event: EVENTS[event] for event in events(view)}
    scopes_of = {**methods, **subscribed, **FEATURES}
    if view != "none":
        scopes_of[f"the {view} view"] = (VIEW_SCOPE,)

    users_of: dict[str, list[str]] = {}
    for user, needed in scopes_of.items():
        for scope in needed:
            users_of.setdefault(scope, []).append(user)
    return dict(sorted(users_of.items()))


class SlackApps:
    """Validates, creates and updates Slack apps by a manifest.

    Lives as long as one command and its event loop, which closes the connections. `token` is an app
    configuration token, and `api_url` an origin in place of https://slack.com, None for Slack
    itself. Raises SetupError for a token that cannot be valid.
    """

    def __init__(self, token: str, api_url: str | None) -> None:
        token = token.strip()
        if not token:
            raise SetupError(f"{CONFIG_VARIABLE} is not set", _CONFIG_TOKEN_CURE)
        if not re.fullmatch(r"[\x21-\x7e]+", token):
            raise SetupError(
                f"{CONFIG_VARIABLE} has characters that no token has", _CONFIG_TOKEN_CURE
            )
        self._web = PooledSessions(partial(new_client, token, api_url))

    async def validate(self, manifest: AppManifest) -> list[str]:
        """Have Slack check a manifest. Returns what to print. Raises SetupError."""
        async with platform_calls("Slack", _manifest_problem):
            await self._web.here().apps_manifest_validate(manifest=json.dumps(manifest))
        return ["Slack takes this manifest"]

    async def create(
        self,
        manifest: AppManifest,
        channel: str,
        *,
        installed_at: str = "",
    ) -> list[str]:
        """Create an app. Returns what is left to do by hand. Raises SetupError.

        `installed_at` is where many workspaces install it, "" for an app of one workspace. The
        secrets in Slack's answer are not printed.
        """
        # The cure wherever Slack may have created the app without saying so: if no answer came in
        # time, after some errors, and for an answer that cannot be read.
        unclear = f"check at {APPS_PAGE} whether the app exists before you run it again: each run creates one"
        explain = partial(_manifest_problem, cure_if_unclear=unclear)
        async with platform_calls("Slack", explain, unanswered=unclear):
            answer = await self._web.here().apps_manifest_create(manifest=json.dumps(manifest))
        app_id = _app_id(answer, unclear)
        if installed_at:
            return [
                f"app {app_id} is created; what is left, by hand:",
                "  1. copy Client ID, Client Secret and Signing Secret under Basic Information,",
                f"     {APPS_PAGE}/{app_id}/general",
                "  2. start the bot with them; only then can it answer Slack's handshake:",
                f"     where {APPS_PAGE}/{app_id}/event-subscriptions",
                "     shows the Request URL unverified, press Retry",
                f"  3. activate public distribution: {APPS_PAGE}/{app_id}/distribute",
                f"  4. install it: {installed_at}",
                f"After a change: sayso channel manifest {channel} --update {app_id}",
            ]
        return [
            f"app {app_id} is created; what is left, by hand:",
            f"  1. install it: {_install_page(app_id)}",
            f"  2. bot_token: copy the Bot User OAuth Token (xoxb-…) of {APPS_PAGE}/{app_id}/oauth",
            "  3. signing_secret: copy the Signing Secret under Basic Information, "
            f"{APPS_PAGE}/{app_id}/general",
            "  4. start the bot with both; only then can it answer Slack's handshake:",
            f"     where {APPS_PAGE}/{app_id}/event-subscriptions "
            "shows the Request URL unverified, press Retry",
            f"After a change: sayso channel manifest {channel} --update {app_id}",
        ]

    async def update(
        self,
        app_id: str,
        manifest: AppManifest,
        *,
        installed_at: str = "",
    ) -> list[str]:
        """Replace all settings of an app. Returns what is left to do. Raises SetupError.

        `installed_at` as for `create`. A second update does no harm, so one whose answer is lost
        can simply be run again.
        """
        if not _APP_ID.fullmatch(app_id):
            raise SetupError(f"{app_id!r} is no App ID", _APP_CURE)
        async with platform_calls("Slack", partial(_manifest_problem, app_id=app_id)):
            answer = await self._web.here().apps_manifest_update(
                app_id=app_id, manifest=json.dumps(manifest)
            )
        app_id = _app_id(answer, f"check at {APPS_PAGE} whether it was changed")
        if answer.get("permissions_updated") is False:
            return [f"app {app_id} has this manifest now; its scopes are unchanged"]
        step = f"install it again: {_install_page(app_id)}"
        if installed_at:
            step = f"have it installed again in each workspace: {installed_at}"
        return [f"app {app_id} has this manifest now", f"If its scopes changed, {step}"]


def _app_id(answer: Any, cure: str) -> str:
    """Return the App ID in an answer of Slack. Raises SetupError with the cure if it names none."""
    app_id = str(answer.get("app_id") or "")
    if not _APP_ID.fullmatch(app_id):
        raise SetupError("Slack's answer names no app", cure)
    return app_id


def _install_page(app_id: str) -> str:
    """Return Slack's page on which an app is installed in its workspace."""
    return f"{APPS_PAGE}/{app_id}/install-on-team"


def _manifest_problem(exc: Exception, *, app_id: str = "", cure_if_unclear: str = "") -> Problem:
    """Return what an error of a call with a manifest means.

    `app_id` is the app that was to be updated, "" for none. `cure_if_unclear` is the cure if Slack
    may have done what it was asked to, "" for the usual cure.
    """
    code = error_code(getattr(exc, "response", None))
    if code == "token_expired":
        return f"{CONFIG_VARIABLE} has expired", _CONFIG_TOKEN_CURE
    if code in TOKEN_ERRORS:
        return f"Slack does not take {CONFIG_VARIABLE} ({code})", _CONFIG_TOKEN_CURE
    if code == "invalid_manifest":
        return _faults(exc)
    if app_id and code in _APP_ERRORS:
        return f"Slack knows no app {app_id!r} that this token may change ({code})", _APP_CURE
    says, cure = setup_problem(exc) or connection_problem("Slack", exc)
    # Without an error code there was no answer: Slack may have done it if the request was sent.
    may_be_done = not never_sent(exc)
    if code:
        may_be_done = reaction_to(code) == "unclear"
    if cure_if_unclear and may_be_done:
        cure = cure_if_unclear
    return says, cure


def _faults(exc: Exception) -> Problem:
    """Return what Slack finds wrong with a manifest, one line for each place, and the cures."""
    answer: Any = getattr(exc, "response", None)
    errors = answer.data.get("errors")
    faults = []
    if isinstance(errors, list):
        faults = [fault for fault in errors if isinstance(fault, dict)]

    lines = []
    places = []
    for fault in faults:
        place = str(fault.get("pointer") or "/")
        places.append(place)
        message = str(fault.get("message") or "")
        lines.append(f"\n  {one_line(place, MAX_CHARS)}  {one_line(message, MAX_CHARS)}")

    # Several faults may have the same cure. Slack may also refuse a manifest without naming a
    # place: "/" then has the cure for any other place.
    cures = dict.fromkeys(_cure_of_fault(place) for place in places or ["/"])
    # SetupError puts a colon between the two texts. So the cure gets a line that begins "cure:".
    return f"Slack takes no such manifest{''.join(lines)}\ncure", "; ".join(cures)


def _cure_of_fault(place: str) -> str:
    """Return the cure for a fault by its place in the manifest."""
    for beginning, cure in _FAULT_CURES:
        if place.startswith(beginning):
            return cure
    return _NO_CURE
