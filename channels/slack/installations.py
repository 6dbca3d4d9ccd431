"""Installations of a Slack app: the tokens of workspaces and organizations, encrypted, in Redis."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, cast

from sayso.infra.ids import random_id
from sayso.infra.records import OtherVersion, check_version, versioned

if TYPE_CHECKING:
    from redis import Redis

#: How long it is remembered that a workspace removed the app, in seconds: 30 days. `sayso doctor`
#: names it.
REMOVED_SECONDS = 30 * 24 * 3600
#: How many removals are remembered.
MAX_REMOVED = 100
#: The kind of secret that stands for an installation that was begun. It is redeemed once.
STATE = "state"
#: The kind of secret that is an invitation. An installation uses it up.
INVITATION = "invitation"
#: Replace a record only if it is still the one that was read: a new installation or a removal wins
#: over a renewal. KEYS: installations. ARGV: id, the record that was read, the new one.
_REPLACE = """
local stored = redis.call('HGET', KEYS[1], ARGV[1])
if stored == ARGV[3] then return 1 end  -- sent again, because the answer was lost
if stored ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return 1
"""
#: Store a record, and use up the invitation that it needs. In one step: an invitation that is used
#: up without an installation would be of no use to anyone. What needs memory comes first, so that a
#: full Redis changes nothing. KEYS: installations, removals, and the invitation where one is
#: needed. ARGV: id, record.
_SAVE = """
local stored = redis.call('HGET', KEYS[1], ARGV[1])
if stored == ARGV[2] then return 'replaced' end  -- sent again, because the answer was lost
if KEYS[3] and redis.call('EXISTS', KEYS[3]) == 0 then return 'uninvited' end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('HDEL', KEYS[2], ARGV[1])
if KEYS[3] then redis.call('DEL', KEYS[3]) end
return stored and 'replaced' or 'new'
"""
#: Delete a record only if it is still the one that was read, and note the removal. In one step: a
#: removal that was not noted would never be told to the operator. The deletion comes first, because
#: a Redis without memory refuses only scripts that begin with what needs some. KEYS: installations,
#: removals. ARGV: id, the record that was read, the removal, for how many seconds it is remembered.
_REMOVE = """
local stored = redis.call('HGET', KEYS[1], ARGV[1])
if not stored and redis.call('HGET', KEYS[2], ARGV[1]) == ARGV[3] then return 1 end  -- sent again
if stored ~= ARGV[2] then return 0 end
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[3])
redis.call('EXPIRE', KEYS[2], ARGV[4])
return 1
"""
#: What became of an installation that was to be stored. `uninvited`: its invitation was used.
Saved = Literal["new", "replaced", "uninvited"]


class TokenUnreadable(Exception):
    """Raised for a record that was encrypted with other keys, or for another workspace."""


@dataclass(frozen=True, slots=True)
class Installation:
    """What a workspace, or an organization for all of its workspaces, has granted to the app."""

    #: The id of the workspace, or of the organization.
    id: str
    token: str = field(repr=False)
    name: str = ""
    #: That of a workspace which installed the app for itself, "" for none.
    organization: str = ""
    #: The person who installed it.
    user: str = ""
    #: Of the bot.
    scopes: tuple[str, ...] = ()
    app_id: str = ""
    #: The bot's own user id.
    bot_user: str = ""
    #: `installed_at` and `expires_at` are in Unix seconds; `expires_at` is 0.0 for a token without
    #: an end.
    installed_at: float = 0.0
    refresh_token: str = field(default="", repr=False)
    expires_at: float = 0.0
    #: Slack's error when it refused to renew the token, "" for none.
    renewal_refused: str = ""
    #: The record that it was read from.
    record: str = field(default="", repr=False, compare=False)

    @property
    def is_organization(self) -> bool:
        """Whether it holds for all workspaces of an organization that let the app in."""
        return self.id.startswith("E")


@dataclass(frozen=True, slots=True)
class Removal:
    """A removal of the app by a workspace or an organization."""

    #: The id of the workspace or organization, and its name.
    id: str
    name: str
    #: When, in Unix seconds.
    at: float
    #: The type of Slack's event.
    reason: str


class TokenCipher:
    """Encrypts the installations of one channel. Lives as long as its channel.

    Its keys are made from the bot's secret keys: the first one encrypts, all of them decrypt.
    """

    def __init__(self, channel: str, keys: Sequence[str]) -> None:
        from cryptography.fernet import Fernet, MultiFernet

        self._channel = channel
        self._fernet = MultiFernet([Fernet(_derived(key)) for key in keys])

    def encrypt(self, installation: Installation) -> str:
        """Return the record of an installation."""
        stored = asdict(replace(installation, record=""))
        text = versioned(json.dumps({**stored, "channel": self._channel}))
        return self._fernet.encrypt(text.encode()).decode()

    def decrypt(self, workspace: str, record: str) -> Installation:
        """Return the installation of a record.

        Raises TokenUnreadable, and OtherVersion for one of another release.
        """
        from cryptography.fernet import InvalidToken

        try:
            text = self._fernet.decrypt(record.encode()).decode()
        except InvalidToken:
            problem = f"the token of {workspace} was encrypted with other secret keys"
            raise TokenUnreadable(problem) from None
        stored: dict[str, Any] = json.loads(check_version(text))
        # A record that was copied to another name would send with a foreign token.
        if stored["channel"] != self._channel or stored["id"] != workspace:
            raise TokenUnreadable(f"the record of {workspace} belongs to another workspace")
        known = _known_fields(Installation, stored)
        return Installation(**{**known, "scopes": tuple(stored["scopes"]), "record": record})


def _known_fields(kind: type[Installation | Removal], stored: dict[str, Any]) -> dict[str, Any]:
    """Return the stored fields that this release knows: a newer one may have added some."""
    names = {each.name for each in fields(kind)}
    return {name: value for name, value in stored.items() if name in names}


def _derived(key: str) -> bytes:
    """Return a Fernet key that is used for nothing else than tokens."""
    derived = hmac.digest(key.encode(), b"sayso slack installations", "sha256")
    return base64.urlsafe_b64encode(derived)


class SlackInstallations:
    """The installations of one channel.

    Lives as long as its process; all methods raise redis.RedisError. `clock` returns Unix seconds.

    Its keys have one hash tag, so that a script can change several of them, also on a cluster. Each
    script gives the same answer when it is sent again.
    """

    def __init__(
        self,
        channel: str,
        redis: Redis,
        keys: Sequence[str],
        key_prefix: str,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.cipher = TokenCipher(channel, keys)
        self.clock = clock
        self._redis = redis
        self._key = f"{key_prefix}{{slack:{channel}}}"

    def save(self, installation: Installation, *, needs: str = "") -> Saved:
        """Store what was granted, in place of an earlier grant, and return what became of it.

        `needs`: the hash of the invitation that it uses up, "" for none.
        """
        keys = [f"{self._key}:installed", f"{self._key}:removed"]
        if needs:
            keys.append(self._secret_key(INVITATION, needs))
        args = (installation.id, self.cipher.encrypt(installation))
        return cast("Saved", self._redis.eval(_SAVE, len(keys), *keys, *args))

    def replace(self, read: Installation, installation: Installation) -> bool:
        """Store an installation in place of the one that was `read`.

        Return False if that one has changed since.
        """
        keys_and_args = (
            f"{self._key}:installed",
            read.id,
            read.record,
            self.cipher.encrypt(installation),
        )
        return bool(self._redis.eval(_REPLACE, 1, *keys_and_args))

    def find(self, workspace: str) -> Installation | None:
        """Return a workspace's own installation, else that of its organization, None without both.

        Raises TokenUnreadable.
        """
        own = self.get(workspace)
        if own or workspace.startswith("E"):
            return own
        organization = self._redis.hget(f"{self._key}:organizations", workspace)
        if organization:
            return self.get(str(organization))
        return None

    def get(self, name: str) -> Installation | None:
        """Return the installation of exactly this workspace or organization.

        Raises TokenUnreadable.
        """
        record = self._redis.hget(f"{self._key}:installed", name)
        if record:
            return self.cipher.decrypt(name, str(record))
        return None

    def ids(self) -> list[str]:
        """Return the ids of all workspaces and organizations that have installed the app."""
        return sorted(map(str, self._redis.hkeys(f"{self._key}:installed")))

    def workspaces_of(self, organization: str) -> list[str]:
        """Return the workspaces of an organization from which something came in."""
        known: Any = self._redis.hgetall(f"{self._key}:organizations")
        return sorted(workspace for workspace, each in known.items() if each == organization)

    def note_organization(self, workspace: str, organization: str) -> None:
        """Remember that a workspace uses the installation of its organization.

        Each of its webhooks says so again. A write would have each of them wait for Redis's disk.
        """
        key = f"{self._key}:organizations"
        if self._redis.hget(key, workspace) != organization:
            self._redis.hset(key, workspace, organization)

    def remove(self, name: str, reason: str, at: float) -> bool:
        """Delete an installation that was removed at `at`, in Unix seconds.

        Return whether there was one.

        Slack repeats events for an hour: a removal from before the installation is over.
        """
        keys = (f"{self._key}:installed", f"{self._key}:removed")
        while record := self._redis.hget(keys[0], name):
            try:
                installation = self.cipher.decrypt(name, str(record))
            except (TokenUnreadable, OtherVersion):
                # Its time is unknown, and its token of no use here. Refusing the event would have
                # Slack repeat it to a process that cannot read the record the next time either.
                installation = Installation(name, "")
            if at < installation.installed_at:
                return False
            removal = json.dumps(asdict(Removal(name, installation.name, at, reason)))
            # One that another process stores just now is looked at, too: it may be a new
            # installation.
            if self._redis.eval(_REMOVE, 2, *keys, name, str(record), removal, REMOVED_SECONDS):
                self._forget_old_removals()
                return True
        return False

    def _forget_old_removals(self) -> None:
        for old in self.removals()[MAX_REMOVED:]:
            self._redis.hdel(f"{self._key}:removed", old.id)

    def removals(self) -> list[Removal]:
        """Return who removed the app in the last REMOVED_SECONDS, the newest first."""
        records: Any = self._redis.hvals(f"{self._key}:removed")
        removals = [Removal(**_known_fields(Removal, json.loads(record))) for record in records]
        recent = [removal for removal in removals if self.clock() - removal.at < REMOVED_SECONDS]
        return sorted(recent, key=lambda removal: -removal.at)

    def start_renewal(self, name: str, seconds: int) -> bool:
        """Return whether this process may renew a token now. No other one may within `seconds`."""
        return bool(self._redis.set(f"{self._key}:renewal:{name}", "1", nx=True, ex=seconds))

    def end_renewal(self, name: str) -> None:
        """Let other processes renew a token."""
        self._redis.delete(f"{self._key}:renewal:{name}")

    def issue(self, kind: str, value: str, seconds: int) -> str:
        """Return a secret that can be redeemed once within `seconds`, for `value`.

        Redis holds its hash alone.
        """
        secret = random_id(24)
        self._redis.set(self._secret_key(kind, hash_of(secret)), value, ex=seconds)
        return secret

    def is_valid(self, kind: str, hashed: str) -> bool:
        """Return whether the secret with this hash can be redeemed now."""
        return bool(self._redis.exists(self._secret_key(kind, hashed)))

    def redeem(self, kind: str, hashed: str) -> str | None:
        """Return the value of the secret with this hash. Of several processes at once one gets it.

        Return None for a secret that is unknown, late or redeemed.
        """
        value = self._redis.getdel(self._secret_key(kind, hashed))
        if value is None:
            return None
        return str(value)

    def _secret_key(self, kind: str, hashed: str) -> str:
        return f"{self._key}:{kind}:{hashed}"


def hash_of(secret: str) -> str:
    """Return the hash under which a secret is stored."""
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()
