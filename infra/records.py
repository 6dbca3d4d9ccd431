"""The version of stored records.

Each JSON object that outlives a process has a version, and each reader checks it. A new version is
introduced in two steps: one release can read it, and the next release writes it. So the processes
of two releases work side by side during an upgrade, and an upgrade can be rolled back. A process
leaves a record that it cannot read to a process that can.
"""

from __future__ import annotations

import re

#: The version that is written.
VERSION = 1
#: The versions that are read. A record without a version was written before there were any;
#: it counts as version 1.
READABLE = range(1, 2)
#: The version at the end of a record, in its text: it is checked before the record is parsed into
#: its type. Only the time at which a script stored a reply may follow it.
_END = re.compile(r'"v": ?(\d{1,9})(?:, "at": \d{1,15})?\}$')
#: Characters at the end of a record in which the version is found.
_END_CHARS = 50


class OtherVersion(Exception):
    """Raised for a record that another release of Sayso has written. The message names the cure."""

    def __init__(self, version: int) -> None:
        cure = "run `sayso migrate --apply` of the release before"
        if version >= READABLE.stop:
            cure = "upgrade this process"
        known = str(READABLE[0])
        if len(READABLE) > 1:
            known = f"{READABLE[0]} to {READABLE[-1]}"
        super().__init__(
            f"a stored record has version {version}, and this process reads {known}: {cure}"
        )
        self.version = version


def versioned(text: str) -> str:
    """Return the text of a JSON object with the version as its last field."""
    if text == "{}":
        return f'{{"v":{VERSION}}}'
    return f'{text.removesuffix("}")},"v":{VERSION}}}'


def version_of(text: str) -> int:
    """Return the version of a JSON object that `versioned` returned. Without a version it is 1."""
    match = _END.search(text[-_END_CHARS:])
    if match:
        return int(match[1])
    return 1


def check_version(text: str) -> str:
    """Return the text of a record unchanged if this process can read it. Raises OtherVersion."""
    check_readable(version_of(text))
    return text


def check_readable(version: int) -> None:
    """Raise OtherVersion for a version that this process cannot read."""
    if version not in READABLE:
        raise OtherVersion(version)
