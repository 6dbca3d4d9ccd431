"""Checks the workspaces that have installed a Slack app, for `sayso doctor` and `sayso channel`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

from sayso.channels.setup import (
    CheckResult,
    Problem,
    SetupError,
    connection_problem,
    platform_calls,
)
from sayso.channels.slack.client import (
    TOKEN_ERRORS,
    error_code,
    missing_scopes,
    new_client,
    setup_problem,
)
from sayso.channels.slack.installations import Installation, SlackInstallations, TokenUnreadable
from sayso.channels.slack.settings import SlackSettings
from sayso.infra.http import PooledSessions
from sayso.infra.records import OtherVersion

#: How long asking Slack about all workspaces together may take, in seconds.
CHECK_SECONDS = 15.0
#: How many installations are checked at the same time, at most.
AT_A_TIME = 8
#: For how long `sayso doctor` names a workspace that removed the app, in seconds: a week.
RECENT_SECONDS = 7 * 86400.0


class WorkspaceChecks:
    """Checks the installations of one channel. Lives as long as one command. It renews no token.

    * `installed_at`: where the app is installed, for an operator to read.
    * `scopes`: the scopes that the bot needs, each with the features that need it.
    """

    def __init__(
        self,
        channel: str,
        settings: SlackSettings,
        installations: SlackInstallations,
        *,
        installed_at: str,
        scopes: dict[str, list[str]],
    ) -> None:
        self._channel = channel
        self._settings = settings
        self._installations = installations
        self._cure = f"have the app installed there again: {installed_at}"
        self._installed_at = installed_at
        self._scopes = scopes
        # The pool hands out the session itself: each installation needs a client with its token.
        self._sessions: PooledSessions[Any] = PooledSessions(lambda session: session)

    async def results(self) -> AsyncIterator[CheckResult]:
        """Yield how many installations there are, the state of each, and recent removals.

        Raises redis.RedisError.
        """
        ids = self._installations.ids()
        if ids:
            organizations = sum(each.startswith("E") for each in ids)
            workspaces = len(ids) - organizations
            counts = (_count(workspaces, "workspace"), _count(organizations, "organization"))
            yield self._ok("workspaces", f"installed by {' and '.join(counts)}")
        else:
            says = "no workspace has installed the app"
            cure = f"install it: {self._installed_at}"
            yield self._warn("workspaces", says, cure, id="workspaces-none")
        async for result in self._each(ids):
            yield result
        for result in self._removals():
            yield result

    async def _each(self, ids: list[str]) -> AsyncIterator[CheckResult]:
        """Yield the state of each installation, then how many could not be checked in time."""
        slots = asyncio.Semaphore(AT_A_TIME)
        tasks = [asyncio.create_task(self._within_slot(slots, each)) for each in ids]
        if not tasks:
            return
        finished, unfinished = await asyncio.wait(tasks, timeout=CHECK_SECONDS)
        for task in unfinished:
            task.cancel()

        # In the order of the ids, which `finished` does not have.
        for task in tasks:
            if task in finished:
                yield task.result()
        if unfinished:
            count = _count(len(unfinished), "installation")
            says = f"{count} could not be checked within {CHECK_SECONDS:g} s"
            cure = f"run `sayso channel status {self._channel}` again"
            yield self._warn("workspaces", says, cure, id="workspaces-late")

    async def _within_slot(self, slots: asyncio.Semaphore, installer_id: str) -> CheckResult:
        """Return the state of one installation, when fewer than AT_A_TIME are being checked."""
        async with slots:
            return await self._one(installer_id)

    async def _one(self, installer_id: str) -> CheckResult:
        """Return the state of the installation of one workspace or organization."""
        try:
            installation = self._installations.get(installer_id)
        except (TokenUnreadable, OtherVersion) as exc:
            cure = "give this process the secret keys of before, or install the app there again"
            return self._fail(installer_id, str(exc), cure, id="workspace-unreadable")
        if installation is None:
            return self._ok(installer_id, "has removed the app just now")

        label = installation.name or installer_id
        if installation.renewal_refused:
            says = f"Slack does not renew the token of {label} ({installation.renewal_refused})"
            return self._fail(installer_id, says, self._cure, id="workspace-renewal")

        rules = self._settings.install_rules
        if rules and not rules.admits(installer_id, installation.organization):
            fault = "has installed the app and is not in install.organizations"
            says = f"{label} {fault}: it gets no answers"
            cure = f"add {installer_id} there, or remove the app from the workspace"
            return self._warn(installer_id, says, cure, id="workspace-not-listed")

        # Slack would refuse an expired token. A check renews none: only the bot's own processes do.
        does_expire = installation.expires_at > 0
        if does_expire and installation.expires_at <= self._installations.clock():
            says = f"{label}: its token has ended, and is renewed when it is needed"
            return self._ok(installer_id, says)
        return await self._ask(installation, label)

    async def _ask(self, installation: Installation, label: str) -> CheckResult:
        """Ask Slack whether it takes a token, and what its scopes are."""
        client = new_client(installation.token, self._settings.api_url, self._sessions.here())

        def problem(exc: Exception) -> Problem:
            code = error_code(getattr(exc, "response", None))
            # `setup_problem` would tell the operator to correct a setting. But the token belongs to
            # an installation, so the workspace must install the app again.
            if code in TOKEN_ERRORS:
                return f"Slack does not take the token of {label} ({code})", self._cure
            return setup_problem(exc) or connection_problem("Slack", exc)

        try:
            async with platform_calls("Slack", problem):
                answer = await client.auth_test()
        except SetupError as exc:
            return self._fail(installation.id, exc.says, exc.cure, id="workspace-token")
        headers = {name.lower(): value for name, value in answer.headers.items()}
        missing = missing_scopes(self._scopes, str(headers.get("x-oauth-scopes", "")))
        if missing:
            says = f"{label} lacks scopes: {'; '.join(missing.values())}"
            return self._warn(installation.id, says, self._cure, id="workspace-scopes")
        return self._ok(installation.id, f"{label}: bot @{answer.get('user')}, all scopes")

    def _removals(self) -> Iterator[CheckResult]:
        """Yield a warning for each workspace that removed the app within RECENT_SECONDS.

        Redis remembers removals for longer, but an operator has read of each for a week by then.
        """
        for removal in self._installations.removals():
            age = self._installations.clock() - removal.at
            if age < RECENT_SECONDS:
                name = removal.name or removal.id
                says = f"{name} removed the app {age / 3600:.0f} hours ago ({removal.reason})"
                cure = f"if that was a mistake, {self._cure}"
                yield self._warn(removal.id, says, cure, id="workspace-removed")

    # In the results, `check` is what was checked: "workspaces" for all of them together, or the id
    # of an installation. `id` is the finding, by which its documentation is found.

    def _ok(self, check: str, says: str) -> CheckResult:
        return CheckResult(check, "ok", says, channel=self._channel)

    def _warn(self, check: str, says: str, cure: str, *, id: str) -> CheckResult:
        return CheckResult(check, "warn", says, cure, self._channel, id=id)

    def _fail(self, check: str, says: str, cure: str, *, id: str) -> CheckResult:
        return CheckResult(check, "fail", says, cure, self._channel, id=id)


def _count(number: int, noun: str) -> str:
    """Return a number with its noun: "1 workspace", "2 workspaces"."""
    plural = "" if number == 1 else "s"
    return f"{number} {noun}{plural}"
