"""What is stored, changed behind a bot's back: a number is replaced wherever a store holds it."""

from __future__ import annotations

import base64
import binascii
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from redis import Redis

#: Seconds to wait for a bot that holds the database.
_LOCK_SECONDS = 10


def tamper_sqlite(file: Path, old: str, new: str) -> None:
    """Replace a number in each value of each table."""
    with closing(sqlite3.connect(file, timeout=_LOCK_SECONDS)) as database, database:
        names = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        for (table,) in database.execute(names).fetchall():
            _tamper_table(database, table, old, new)


def _tamper_table(database: sqlite3.Connection, table: str, old: str, new: str) -> None:
    columns = [row[1] for row in database.execute(f'PRAGMA table_info("{table}")')]
    for column in columns:
        rows = database.execute(f'SELECT rowid, "{column}" FROM "{table}"').fetchall()
        for rowid, value in rows:
            changed = _changed(value, old, new)
            if changed != value:
                update = f'UPDATE "{table}" SET "{column}" = ? WHERE rowid = ?'
                database.execute(update, (changed, rowid))


def tamper_redis(client: Redis, old: str, new: str) -> None:
    """Replace a number in each value of each key."""
    for key in client.scan_iter():
        kind = client.type(key)
        if kind == b"string":
            value: Any = client.get(key)
            client.set(key, _changed(value, old, new), keepttl=True)
        elif kind == b"hash":
            for field, value in client.hgetall(key).items():
                client.hset(key, field, _changed(value, old, new))
        elif kind == b"list":
            for index, value in enumerate(client.lrange(key, 0, -1)):
                client.lset(key, index, _changed(value, old, new))


def _changed(value: Any, old: str, new: str) -> Any:
    """Return a value with the number replaced: in text, in bytes, in pickled base64, as an integer."""
    if isinstance(value, int):
        return int(str(value).replace(old, new)) if str(value) == old else value
    if isinstance(value, bytes):
        number = int(old).to_bytes(4, "big"), int(new).to_bytes(4, "big")
        swapped = int(old).to_bytes(4, "little"), int(new).to_bytes(4, "little")
        text = value.replace(old.encode(), new.encode())
        return text.replace(*number).replace(*swapped)
    if not isinstance(value, str):
        return value
    if old in value:
        return value.replace(old, new)
    try:
        inner = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return value
    changed = _changed(inner, old, new)
    return base64.b64encode(changed).decode() if changed != inner else value
