"""The Redis of a test process: the bundled server on a Unix socket, which writes nothing to disk."""

from __future__ import annotations

import atexit
import tempfile
from functools import cache
from itertools import count
from pathlib import Path

from redis import Redis

from sayso.infra.redis.client import connect
from sayso.ops.server.embedded_redis import EmbeddedRedis
from sayso.pending.sharded_scripts import ShardedScripts
from sayso.workers.identities import RedisIdentities
from sayso.workers.scripts import CONVERSATION_SCRIPTS

_NUMBERS = count()


@cache
def scratch_url() -> str:
    """Return the URL of the server, which runs from the first call until the process ends.

    Raises EmbeddedRedisError on a machine that cannot run one.
    """
    folder = tempfile.TemporaryDirectory(prefix="sayso-")
    server = EmbeddedRedis(Path(folder.name), appends=False)
    server.start()
    atexit.register(folder.cleanup)
    atexit.register(server.stop)  # the last one registered runs first
    return server.url


@cache
def _client() -> Redis:
    return connect(scratch_url())


def new_identities() -> RedisIdentities:
    """Return the ids of people, none so far. Each call has keys of its own, and empties nothing."""
    prefix = f"identities-{next(_NUMBERS)}:"
    return RedisIdentities(ShardedScripts(_client(), CONVERSATION_SCRIPTS, prefix=prefix))


def empty_redis() -> Redis:
    """Return the client that all tests of this process share, of a Redis that is empty now.

    To empty it takes a twentieth of a millisecond, and to open a client takes longer.
    """
    client = _client()
    client.flushall()
    return client
