"""Tide file: what is remembered of Redis servers in the data folder, across a restart of everything."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from sayso.workers.tide import Mark

log = logging.getLogger(__name__)

#: The file's name in the data folder.
FILE = "tide.json"
#: Servers that are remembered at most; the one noted longest ago goes.
MAX_PLACES = 32


class TideFile:
    """One small JSON file, shared by all processes on a folder. It is replaced as a whole, and never goes back."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> Mapping[str, Mark]:
        """The last mark of each place. A file that is missing or damaged remembers nothing."""
        try:
            found = json.loads(self._path.read_text())
            return {str(place): Mark(str(mark["id"]), int(mark["n"])) for place, mark in found.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as exc:
            log.warning("tide.not_remembered", extra={"reason": type(exc).__name__})
            return {}

    def keep(self, place: str, mark: Mark) -> None:
        """Note a mark, unless another process noted a higher one."""
        marks = dict(self.read())
        before = marks.pop(place, None)
        marks[place] = max(before, mark, key=lambda each: each.n) if before and before.id == mark.id else mark
        kept = {name: asdict(marks[name]) for name in list(marks)[-MAX_PLACES:]}
        beside = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            beside.write_text(json.dumps(kept))
            beside.replace(self._path)
        except OSError as exc:
            log.warning("tide.not_kept", extra={"reason": type(exc).__name__})
