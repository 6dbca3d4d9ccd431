"""The access rules of a bot's channels: who may talk to it, and how often."""

from __future__ import annotations

from sayso.config.settings.channels import AccessSettings, AnyChannel
from sayso.config.settings.schema import Settings
from sayso.config.wiring.redis_parts import RedisParts
from sayso.workers.access import AccessConfig, AccessRules, redis_quota
from sayso.workers.people import RedisPeople


def rules_of(channel: AnyChannel) -> AccessRules:
    """Return the access rules of a channel. Without `access` in the YAML all people may talk."""
    access = channel.access or AccessSettings()
    return AccessRules(
        allow=access.allow,
        block=access.block,
        pairing=access.pairing,
        groups=access.groups,
        chats=access.chats,
        per_minute=access.per_minute,
        id_prefix=channel.user_id_prefix,
    )


def access_config(settings: Settings, redis: RedisParts) -> AccessConfig | None:
    """Return the access rules of all channels, with what they need of Redis.

    None where no channel has `access`. Messages a minute are counted in Redis, and only where a
    channel has such a limit.
    """
    rules_by_channel = {
        name: rules_of(channel) for name, channel in settings.channels.items() if channel.access
    }
    if not rules_by_channel:
        return None
    has_limit = any(each.per_minute is not None for each in rules_by_channel.values())
    quota = None
    if has_limit:
        quota = redis_quota(redis.client, redis.url, prefix=redis.key_prefix)
    return AccessConfig(rules_by_channel, RedisPeople(redis.client, prefix=redis.key_prefix), quota)
