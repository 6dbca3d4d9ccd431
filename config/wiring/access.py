"""Access rules of the channels: who may talk where, and the line that `sayso check` prints about it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from redis import Redis

from sayso.config.settings.channels import AccessSettings, AnyChannel
from sayso.config.settings.schema import Settings
from sayso.workers.access.gate import AccessConfig
from sayso.workers.access.people import RedisPeople
from sayso.workers.access.rules import AccessRules, rules

if TYPE_CHECKING:
    from sayso.workers.access.quota import Quota

_GROUPS = {"mention": "", "always": "answers every message of a group", "never": "not in groups"}


def rules_of(channel: AnyChannel) -> AccessRules:
    """Return the access rules of a channel. Without `access` in the YAML everybody may talk."""
    access = channel.access or AccessSettings()
    return rules(
        allow=access.allow,
        block=access.block,
        pairing=access.pairing,
        groups=access.groups,
        chats=access.chats,
        per_minute=access.per_minute,
        phones=channel.has_phone_numbers,
    )


def access_config(settings: Settings, client: Redis, url: str) -> AccessConfig | None:
    """Return the access rules of all channels with their lists of people, None where no channel has `access`."""
    rules_by_channel = {name: rules_of(channel) for name, channel in settings.channels.items() if channel.access}
    if not rules_by_channel:
        return None
    prefix = settings.key_prefix
    return AccessConfig(
        rules_by_channel, RedisPeople(client, prefix=prefix), _quota(rules_by_channel.values(), client, url, prefix)
    )


def _quota(rules: Iterable[AccessRules], client: Redis, url: str, prefix: str) -> Quota | None:
    """Return what counts turns per minute. Its library is only loaded where a channel has such a limit."""
    if all(each.per_minute is None for each in rules):
        return None
    from sayso.workers.access.quota import redis_quota

    return redis_quota(client, url, prefix=prefix)


def describe_access(channel: AnyChannel) -> str:
    """Return who may talk on a channel, as one line for an operator."""
    access = channel.access
    if access is None:
        return "talks to: everybody"
    return f"talks to: {'; '.join([_people(access), *_limits(access)])}"


def _people(access: AccessSettings) -> str:
    if access.allow is None and not access.pairing:
        return "everybody"
    named = [f"{len(access.allow)} named"] if access.allow else []
    return " and ".join([*named, f"those an operator approves{', by code' if access.pairing else ''}"])


def _limits(access: AccessSettings) -> Iterator[str]:
    if access.block:
        yield f"never to {len(access.block)}"
    if _GROUPS[access.groups]:
        yield _GROUPS[access.groups]
    if access.chats is not None:
        yield f"only in {len(access.chats)} chat{'s' if len(access.chats) != 1 else ''}"
    if access.per_minute:
        yield f"{access.per_minute} turns a minute each"
    if access.roles:
        yield f"as {', '.join(access.roles.allowed)}"
