"""The settings of a Slack channel.

The docstring below each field is printed in the reference of the YAML
(`docs/reference/yaml.md`). Its last sentence is an example value, "Example: `...`.".
"""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from sayso.channels.base import (
    OptionalSecret,
    Secret,
    Section,
    VendorSettings,
    refuse_bare_section,
    refuse_none,
)
from sayso.channels.slack.address import split_place


def _check_installer_id(text: str) -> str:
    """Return the id of a workspace (T...) or an organization (E...) unchanged.

    Raises ValueError for any other text.
    """
    if not re.fullmatch(r"[TE][A-Z0-9]{1,40}", text):
        problem = f"{text!r} is not an id of a workspace or organization"
        raise ValueError(f"{problem}: write it as T0123ABCD or E0123ABCD")
    return text


#: The id of a workspace or of an organization, either of which can install the app.
InstallerId = Annotated[str, AfterValidator(_check_installer_id)]


class InstallSettings(Section):
    """Who may install the app, and how it is installed."""

    # Only the manifest of the app has `org_deploy` and `token_rotation`. The running bot serves
    # organizations, and renews a token that expires, whatever they are.

    organizations: Annotated[list[InstallerId] | None, BeforeValidator(refuse_none)] = Field(
        default=None, min_length=1
    )
    """The ids of the only workspaces and organizations that may install the app. Without it: all.
    Example: `[T0123ABCD, E0456EFGH]`.
    """
    invited: bool = False
    """Whether each installation needs a link of `sayso channel invite`, which works once.
    Example: `true`.
    """
    org_deploy: bool = True
    """Whether the manifest lets an organization install the app for all of its workspaces.
    Example: `false`.
    """
    token_rotation: bool = False
    """Whether the manifest lets Slack's tokens expire after 12 hours. The bot then renews them.
    Slack cannot turn it off again. Example: `true`.
    """

    def admits(self, *ids: str) -> bool:
        """Return whether the app may be installed for a workspace or an organization.

        `ids` are the ids of the workspace and of its organization. One of them must be listed. One
        that is unknown or does not exist is "", which is never listed.
        """
        if self.organizations is None:
            return True
        return not set(self.organizations).isdisjoint(ids)


#: How Slack shows the bot to people: as an agent, as an assistant (apps that are older than July
#: 2026), or as an app with plain direct messages.
View = Literal["agent", "assistant", "none"]


class SlackSettings(VendorSettings):
    """A Slack app with `bot_token`, or in many workspaces with `client_id` and `client_secret`."""

    platform: Literal["slack"]
    """A Slack app. Example: `slack`."""
    bot_token: OptionalSecret = None
    """The token of the app's bot user in its only workspace. Example: `${SLACK_BOT_TOKEN}`."""
    signing_secret: Secret
    """The secret that signs the app's requests. Example: `${SLACK_SIGNING_SECRET}`."""
    view: View = "agent"
    """The view that the app has at Slack. `agent`: each message that a person does not write in a
    thread begins a thread, with a separate conversation. `assistant`: Slack makes the threads, so
    the bot begins none. `none`: an app without either view, whose direct messages are one
    conversation.
    Example: `agent`.
    """
    titles: bool = True
    """Whether a thread in the agent view has the first words of its first message as its title, in
    the list that Slack shows of a person's threads. The other views have no titles.
    Example: `false`.
    """
    client_id: OptionalSecret = None
    """The app's client id, for an app that many workspaces install. Example: `${SLACK_CLIENT_ID}`.
    """
    client_secret: OptionalSecret = None
    """The secret of the client id. Example: `${SLACK_CLIENT_SECRET}`."""
    install: Annotated[InstallSettings | None, BeforeValidator(refuse_bare_section)] = None
    """Who may install the app, with `client_id`. Without it: any workspace.
    Example: `{invited: true}`.
    """

    @model_validator(mode="after")
    def _is_for_one_workspace_or_many(self) -> Self:
        """Check that the keys are those for one workspace or those for many, and complete.

        A secret that is given is never empty: `OptionalSecret` refuses an empty one.
        """
        if self.bot_token and (self.client_id or self.client_secret):
            raise ValueError(
                "has bot_token, which is for one workspace, and client_id or client_secret, "
                "which are for many: leave out bot_token, or the other two"
            )
        if bool(self.client_id) != bool(self.client_secret):
            missing = "client_secret" if self.client_id else "client_id"
            raise ValueError(f"{missing} is missing: both are in the app's Basic Information")
        if not (self.bot_token or self.client_id):
            cure = "give bot_token for one workspace, or client_id and client_secret for many"
            raise ValueError(f"has no token: {cure}")
        if self.install and not self.client_id:
            raise ValueError("install needs client_id and client_secret instead of bot_token")
        return self

    @property
    def install_rules(self) -> InstallSettings | None:
        """Who may install the app, None for an app of one workspace."""
        if not self.has_many_workspaces:
            return None
        return self.install or InstallSettings()

    @property
    def has_many_workspaces(self) -> bool:
        """Whether the app has a `client_id`, with which many workspaces can install it."""
        return self.client_id is not None

    def problem_with_id(self, given_id: str) -> str:
        """Return why no person and no chat of Slack can have this id, "" if one can.

        It must name its workspace if and only if many workspaces have installed the app.
        """
        # An id behind anything but a well-formed workspace stays in one piece, and is refused here.
        place = split_place(given_id)
        # T and E begin the id of a workspace and of an organization.
        if not re.fullmatch(r"[A-DF-SU-Z][A-Z0-9]{1,40}", place.id):
            workspace = "T0123ABCD/" if self.has_many_workspaces else ""
            person = f"{workspace}U0123ABCD"
            chat = f"{workspace}C0456EFGH"
            return f"is not an id of Slack: write it as {person} or {chat}"
        if self.has_many_workspaces and not place.team:
            return f"names no workspace, and the app is in many: write it as T0123ABCD/{given_id}"
        if place.team and not self.has_many_workspaces:
            return f"names a workspace, which only an app with client_id has: write {place.id}"
        return ""

    def problem_with_group(self, given_id: str) -> str:
        """Return why no user group of Slack can have this id, "" if one can.

        It must name its workspace if and only if many workspaces have installed the app.
        """
        place = split_place(given_id)
        workspace = "T0123ABCD/" if self.has_many_workspaces else ""
        is_group = re.fullmatch(r"S[A-Z0-9]{1,40}", place.id)
        if is_group and bool(place.team) == self.has_many_workspaces:
            return ""
        return (
            f"is not the id of a user group of Slack: write it as {workspace}S0123ABCD, "
            "which its menu in Slack copies"
        )

    @property
    def needed_library(self) -> tuple[str, str]:
        """The extra of Sayso's package that the channel needs, and a module that it installs.

        An app in many workspaces needs it to encrypt their tokens, which are stored in Redis. Both
        are "" for an app of one workspace.
        """
        if not self.has_many_workspaces:
            return "", ""
        return "slack-install", "cryptography.fernet"
