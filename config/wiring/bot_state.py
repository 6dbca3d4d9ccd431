"""What a command needs of a bot without starting it: a client of its Redis, and its secret keys."""

from __future__ import annotations

from pathlib import Path

from redis.exceptions import RedisError

from sayso.channels.setup import BotState
from sayso.config.settings.loader import ConfigError
from sayso.config.settings.schema import Settings
from sayso.config.wiring.data_folder import known_keys, open_data
from sayso.config.wiring.redis_parts import RedisParts, find_redis
from sayso.infra.redis.client import connect


def find_state(settings: Settings, data: Path) -> BotState | None:
    """Return the state of the bot on a data folder, None if its Redis or its keys are not known.

    Creates nothing, and raises no error: the commands that call this report a missing Redis by
    another check, which names the reason.
    """
    try:
        keys = known_keys(data)
        redis = connect(find_redis(settings, data))
    except (ConfigError, ValueError, OSError, RedisError):
        return None
    if not keys:
        return None
    return BotState(redis, settings.key_prefix, keys)


def open_state(settings: Settings, data: Path, channel: str) -> BotState:
    """Return the state of the bot for a command of one channel.

    Creates the secret keys if there are none. Raises ConfigError, also where the channel needs a
    library that is missing.
    """
    # Imported here, because it imports the agent, which `find_state` does not need.
    from sayso.config.wiring.libraries import require_channel_library

    require_channel_library(settings, channel)
    keys = open_data(data, settings.state_folder(data))
    redis = RedisParts.find(settings, data)
    return BotState(redis.client, settings.key_prefix, keys)
