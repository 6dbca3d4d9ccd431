"""Deployment: a name on a Redis belongs to one bot while its workers live."""

from __future__ import annotations

import pytest

from sayso.infra.redis.client import RedisUnfit
from sayso.workers.deployment_name import Deployment
from sayso.workers.recovery import Heartbeat

SHOP = Deployment("shop", ("key",), {"wa": "whatsapp AC1", "web": "console"})
OTHERS_KEYS = Deployment("shop", ("other",), SHOP.channels)
OTHER_CHANNELS = Deployment("shop", SHOP.keys, {"desk": "slack"})
OTHER_ACCOUNT = Deployment("shop", SHOP.keys, {"wa": "whatsapp AC2"})


@pytest.mark.parametrize("other", [OTHERS_KEYS, OTHER_CHANNELS, OTHER_ACCOUNT])
def test_second_bot_under_a_name_in_use_is_refused(redis_client, other):
    """A worker of the first one is alive. The error has name, channels and cure, and shows no key."""
    Heartbeat(redis_client, "w1").beat()
    SHOP.claim(redis_client, worker="w1")
    with pytest.raises(
        RedisUnfit, match=r"another bot uses the name 'shop' .* channels wa, web: .*`name:`"
    ) as refused:
        other.claim(redis_client)
    assert "key" not in str(refused.value).replace("SAYSO_SECRET_KEYS", "")
    Heartbeat(redis_client, "w1").leave("w1")
    other.claim(redis_client)


@pytest.mark.parametrize(
    "changed",
    [
        Deployment("shop", ("new", "key"), SHOP.channels),
        Deployment("shop", SHOP.keys, {**SHOP.channels, "tg": "telegram 7"}),
        Deployment("shop", SHOP.keys, {"web": "console"}),
    ],
)
def test_rolling_change_of_the_same_bot_is_let_in(redis_client, changed):
    """Keys or channels change, and old and new processes run side by side."""
    Heartbeat(redis_client, "w1").beat()
    SHOP.claim(redis_client, worker="w1")
    changed.claim(redis_client)
    SHOP.claim(redis_client)


def test_of_two_bots_that_start_at_once_one_is_refused(redis_client):
    """Each sends a heartbeat before it claims the name."""
    Heartbeat(redis_client, "w1").beat()
    Heartbeat(redis_client, "w2").beat()
    SHOP.claim(redis_client, worker="w1")
    with pytest.raises(RedisUnfit, match="another bot"):
        OTHER_CHANNELS.claim(redis_client, worker="w2")
