"""RedisIdentities: which ids belong to one person of a channel.

On some platforms one person has several ids, such as a phone number and an id of the platform, and
a number may pass to another person. Everything of a person is stored under one *key*, the first id
that came, so that the conversation goes on when the ids change. The rules are in
`workers/lua/shared/sender.lua`.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from sayso.channels.types import Identity, SenderIds
from sayso.infra.records import check_version
from sayso.infra.redis.scripts import Arguments, Tag
from sayso.pending.sharded_scripts import ShardedScripts


class RedisIdentities:
    """The ids of people, in Redis. One per process.

    Each call is one script, and safe to repeat. All methods raise redis.RedisError. They raise
    OtherVersion for a person whom a newer release has stored: of that person they change nothing.

    Two messages of one person that come at the same moment, in two processes, find the same person,
    because one script looks up and stores.

    Outside a cluster, the script that accepts a turn (`accept_from.lua`) does the work of
    `recognize` itself. On a cluster, the mailbox calls `recognize` first. A process that is killed
    between the two leaves ids and no turn; the platform sends the message again, and the same
    person is found.
    """

    def __init__(self, scripts: ShardedScripts) -> None:
        self._scripts = scripts

    def recognize(
        self,
        channel: str,
        ids: SenderIds,
        *,
        store: bool,
        briefly: bool = False,
    ) -> Identity:
        """Return the sender of a message with these ids. The key of a new sender is one of them.

        `store`: keep the ids as the sender's. `briefly`: keep them for an hour only, for a sender
        whom the access rules refuse; it goes before `store`. With neither, nothing is stored.
        """
        args = {**asdict(ids), "store": store or briefly, "briefly": briefly}
        return parse_identity(self._run("identify", channel, args))

    def find_by_id(self, channel: str, name: str) -> Identity | None:
        """Return the person who has the id `name` now, None for an unknown id."""
        return self._read(channel, name, is_key=False)

    def find_by_key(self, channel: str, key: str) -> Identity | None:
        """Return the person whose data is stored under `key`, None for an unknown key.

        If the key is a phone number, another person may have that number now.
        """
        return self._read(channel, key, is_key=True)

    def forget(self, channel: str, key: str) -> None:
        """Forget the ids of the person whose data is stored under `key`.

        The data itself stays. An erasure of a person deletes it first, and then calls this.
        """
        self._run("forget_identity", channel, {"key": key})

    def _read(self, channel: str, name: str, *, is_key: bool) -> Identity | None:
        """Return the person of the id `name`, None for an unknown one.

        `is_key`: the person whose data is stored under the id, and not the one who has it now.
        """
        record = self._run("load_identity", channel, {"name": name, "is_key": is_key})
        if record:
            return parse_identity(record)
        return None

    def _run(self, script: str, channel: str, args: Arguments) -> Any:
        return self._scripts.run_on(script, people_tag(channel), args)


def people_tag(channel: str) -> Tag:
    """Return the hash tag of the ids of a channel's people.

    They are together on one node of a cluster, so that a person with several ids is found in one
    step.
    """
    return f"ids:{channel}"


def parse_identity(record: str) -> Identity:
    """Return the identity of a record. Raises OtherVersion."""
    fields = json.loads(check_version(record))
    return Identity(
        key=fields["key"],
        number=fields["number"],
        user_id=fields["user_id"],
        ids=tuple(fields["ids"]),
    )
