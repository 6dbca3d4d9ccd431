"""Installations of a Slack app: the tokens of workspaces and organizations, encrypted, in Redis.

An installation is what a workspace, or an organization for its workspaces, has granted to the app.
Installing goes through a person's browser, with two kinds of secrets that Redis knows by their
hash: an invitation, with which an operator admits a workspace, and a state, which ties the browser
that comes back from Slack to the one that was sent there.
"""

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
#: The kind of secret with which a browser is sent to Slack. It is redeemed when it comes back.
STATE = "state"
#: The kind of secret that is an invitation. An installation uses it up.
INVITATION = "invitation"
#: Replaces a record only if it is still the one that was read: a new installation or a removal wins
#: over the renewal of a token. KEYS: installations. ARGV: id, the record that was read, the new
#: one.
_REPLACE = """
local stored = redis.call('HGET', KEYS[1], ARGV[1])
if stored == ARGV[3] then return 1 end  -- sent again, because the answer was lost
if stored ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return 1
"""
#: Stores a record, and uses up the invitation that it needs. In one step: otherwise an invitation
#: could be used up without an installation. What needs memory comes first, so that a full Redis
#: changes nothing. KEYS: installations, removals, and the invitation where one is needed. ARGV: id,
#: record.
_SAVE = """
local stored = redis.call('HGET', KEYS[1], ARGV[1])
if stored == ARGV[2] then return 'replaced' end  -- sent again, because the answer was lost
if KEYS[3] and redis.call('EXISTS', KEYS[3]) == 0 then return 'uninvited' end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('HDEL', KEYS[2], ARGV[1])
if KEYS[3] then redis.call('DEL', KEYS[3]) end
return stored and 'replaced' or 'new'
"""
#: Deletes a record only if it is still the one that was read, and notes the removal. In one step:
#: otherwise the operator might never read of the removal. The deletion comes first, because a Redis
#: without memory refuses only scripts whose first command needs some. KEYS: installations,
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
#: What became of an installation that was to be stored. `new`: it is stored. `replaced`: it is
#: stored in place of an earlier one. `uninvited`: it is not, since its invitation was used
#: meanwhile.
SaveOutcome = Literal["new", "replaced", "uninvited"]


class TokenUnreadable(Exception):
    """Raised for a record that was encrypted with other keys, or for another workspace."""


@dataclass(frozen=True, slots=True)
class Installation:
    """What a workspace, or an organization for its workspaces, has granted to the app."""

    #: The id of the workspace, or of the organization.
    id: str
    #: The token of the bot's user.
    token: str = field(repr=False)
    #: The name of the workspace or organization.
    name: str = ""
    #: The id of the organization of a workspace that installed the app for itself, "" for none.
    organization: str = ""
    #: The id of the person who installed the app.
    user: str = ""
    #: The scopes of the token: what the bot may do.
    scopes: tuple[str, ...] = ()
    app_id: str = ""
    #: The id of the bot's user.
    bot_user: str = ""
    #: When the app was installed, in Unix seconds.
    installed_at: float = 0.0
    #: The secret with which the token is renewed, "" for a token that does not expire.
    refresh_token: str = field(default="", repr=False)
    #: When the token expires, in Unix seconds; 0.0 if it does not.
    expires_at: float = 0.0
    #: Slack's error when it refused to renew the token, "" for none.
    renewal_refused: str = ""
    #: The stored record that it was read from, "" if it was not.
    record: str = field(default="", repr=False, compare=False)

    @property
    def is_organization(self) -> bool:
        """Whether an organization installed the app. It decides which workspaces have the app."""
        return self.id.startswith("E")


@dataclass(frozen=True, slots=True)
class Removal:
    """A removal of the app by a workspace or an organization."""

    #: The id and the name of the workspace or organization.
    id: str
    name: str
    #: When the app was removed, in Unix seconds.
    at: float
    #: The type of Slack's event, such as "app_uninstalled".
    reason: str


class TokenCipher:
    """Encrypts the installations of one channel. Lives as long as its channel.

    `keys` are the bot's secret keys. The first one encrypts, and all of them decrypt, so that a key
    can be replaced while there are records of the old one.
    """

    def __init__(self, channel: str, keys: Sequence[str]) -> None:
        from cryptography.fernet import Fernet, MultiFernet

        self._channel = channel
        self._fernet = MultiFernet([Fernet(_derived(key)) for key in keys])

    def encrypt(self, installation: Installation) -> str:
        """Return the encrypted record of an installation."""
        content = asdict(replace(installation, record=""))
        text = versioned(json.dumps({**content, "channel": self._channel}))
        return self._fernet.encrypt(text.encode()).decode()

    def decrypt(self, workspace: str, record: str) -> Installation:
        """Return the installation in a record that is stored under the id `workspace`.

        Raises TokenUnreadable, and OtherVersion for a record of another release.
        """
        from cryptography.fernet import InvalidToken

        try:
            text = self._fernet.decrypt(record.encode()).decode()
        except InvalidToken:
            problem = f"the token of {workspace} was encrypted with other secret keys"
            raise TokenUnreadable(problem) from None
        content: dict[str, Any] = json.loads(check_version(text))
        # A record that was copied to another id in Redis would send with a foreign token.
        if content["channel"] != self._channel or content["id"] != workspace:
            raise TokenUnreadable(f"the record of {workspace} belongs to another workspace")
        known = _known_fields(Installation, content)
        return Installation(**{**known, "scopes": tuple(content["scopes"]), "record": record})


def _known_fields(kind: type[Installation | Removal], content: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that this release knows: a newer one may have added some."""
    names = {each.name for each in fields(kind)}
    return {name: value for name, value in content.items() if name in names}


def _derived(key: str) -> bytes:
    """Return a Fernet key made from a secret key, which is used for tokens alone."""
    derived = hmac.digest(key.encode(), b"sayso slack installations", "sha256")
    return base64.urlsafe_b64encode(derived)


class SlackInstallations:
    """The installations of one channel, in Redis. Lives as long as its process.

    All methods raise redis.RedisError. `keys` are the bot's secret keys, and `clock` returns Unix
    seconds.

    The Redis keys of a channel have one hash tag, so that a script can change several of them, also
    on a cluster. A script that is sent again, because its answer was lost, gives the same answer.
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

    def save(self, installation: Installation, *, invitation: str = "") -> SaveOutcome:
        """Store an installation, in place of an earlier one, and return what became of it.

        `invitation`: the hash of the invitation that it uses up, "" for none.
        """
        keys = [f"{self._key}:installed", f"{self._key}:removed"]
        if invitation:
            keys.append(self._secret_key(INVITATION, invitation))
        args = (installation.id, self.cipher.encrypt(installation))
        return cast("SaveOutcome", self._redis.eval(_SAVE, len(keys), *keys, *args))

    def replace(self, current: Installation, new: Installation) -> bool:
        """Store `new` in place of `current`, which was read before.

        Returns False if the stored one has changed since it was read.
        """
        key = f"{self._key}:installed"
        args = (current.id, current.record, self.cipher.encrypt(new))
        return bool(self._redis.eval(_REPLACE, 1, key, *args))

    def find(self, workspace: str) -> Installation | None:
        """Return a workspace's own installation, else that of its organization, None without both.

        Raises TokenUnreadable and OtherVersion.
        """
        own = self.get(workspace)
        if own or workspace.startswith("E"):
            return own
        organization = self._redis.hget(f"{self._key}:organizations", workspace)
        if organization:
            return self.get(str(organization))
        return None

    def get(self, name: str) -> Installation | None:
        """Return the installation of exactly this workspace or organization, None for none.

        Raises TokenUnreadable and OtherVersion.
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
        """Remember that a workspace uses the installation of its organization."""
        key = f"{self._key}:organizations"
        # Each webhook of the workspace says so again. Written each time, each of them would wait
        # for Redis's disk.
        if self._redis.hget(key, workspace) != organization:
            self._redis.hset(key, workspace, organization)

    def remove(self, name: str, reason: str, at: float) -> bool:
        """Delete the installation `name`, which was removed at `at`. Return whether there was one.

        `at` is in Unix seconds, and `reason` the type of Slack's event. Slack repeats events for an
        hour, so a removal from before the installation deletes nothing.
        """
        installed_key = f"{self._key}:installed"
        removed_key = f"{self._key}:removed"
        # Again if another process changes the record meanwhile: it may be a new installation.
        while record := self._redis.hget(installed_key, name):
            try:
                installation = self.cipher.decrypt(name, str(record))
            except (TokenUnreadable, OtherVersion):
                # When it was installed is not known, and its token is of no use here. Refusing the
                # event would not help: no process can read the record when Slack repeats it.
                installation = Installation(name, "")
            if at < installation.installed_at:
                return False

            removal = json.dumps(asdict(Removal(name, installation.name, at, reason)))
            args = (name, str(record), removal, REMOVED_SECONDS)
            if self._redis.eval(_REMOVE, 2, installed_key, removed_key, *args):
                self._delete_old_removals()
                return True
        return False

    def _delete_old_removals(self) -> None:
        """Delete the oldest removals beyond MAX_REMOVED."""
        for old in self.removals()[MAX_REMOVED:]:
            self._redis.hdel(f"{self._key}:removed", old.id)

    def removals(self) -> list[Removal]:
        """Return the removals of the last REMOVED_SECONDS, the newest first."""
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
        """Return a new secret, which can be redeemed once within `seconds` for `value`.

        `kind` is STATE or INVITATION. Redis has only the hash of the secret.
        """
        secret = random_id(24)
        self._redis.set(self._secret_key(kind, hash_of(secret)), value, ex=seconds)
        return secret

    def is_valid(self, kind: str, hashed: str) -> bool:
        """Return whether the secret with this hash can be redeemed now."""
        return bool(self._redis.exists(self._secret_key(kind, hashed)))

    def redeem(self, kind: str, hashed: str) -> str | None:
        """Return the value of the secret with this hash, and delete it.

        None for a secret that is unknown, has expired or was redeemed: of several processes at the
        same moment one gets the value.
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
