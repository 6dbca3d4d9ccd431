"""Running: the note that `sayso up` leaves in its data folder, by which other commands find the bot that runs there."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from sayso.config.loader import ConfigError, default_config, given_config

#: The note's name in a bot's own folder, and the version of what it holds.
FILE = "running.json"
SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Running:
    """A bot that runs: its file, its web's address on this machine, and its supervisor's process id."""

    config: Path
    url: str
    pid: int


def leave_note(folder: Path, running: Running) -> None:
    """Note in a bot's state folder that it runs."""
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f"{FILE}.{running.pid}"
    draft.write_text(json.dumps({"schema": SCHEMA, **asdict(running), "config": str(running.config)}))
    draft.replace(folder / FILE)


def take_note_back(folder: Path) -> None:
    """Remove the note of this process, and no other's."""
    note = _read(folder / FILE)
    if note and note.pid == os.getpid():
        (folder / FILE).unlink(missing_ok=True)


def running_bots(data: Path) -> list[Running]:
    """Return the bots that `sayso up` or `sayso demo` runs on a data folder now."""
    return list(_alive(data))


def find_config(config: Path | None, data: Path) -> Path:
    """Return the file of the bot that an operator means: as given, by SAYSO_CONFIG, of the bot that runs on this data
    folder, or ./sayso.yaml. Raises ConfigError where several run, and where there is none.
    """
    given = config or given_config()
    bots = {bot.config.resolve(): bot for bot in running_bots(data)}
    if given or not bots:
        return given or default_config()
    if len(bots) == 1:
        return next(iter(bots.values())).config
    here = Path("sayso.yaml").resolve()
    if here in bots:
        return here
    raise ConfigError([f"several bots run on {data}: name one with --config: {', '.join(map(str, sorted(bots)))}"])


def url_of(config: Path, data: Path) -> str:
    """Return the address at which the running bot of a file answers on this machine; "" where it does not run."""
    return next((bot.url for bot in running_bots(data) if bot.config.resolve() == config.resolve()), "")


def _alive(data: Path) -> Iterator[Running]:
    for file in sorted(data.glob(f"bots/*/{FILE}")):
        note = _read(file)
        if note and _is_alive(note.pid):
            yield note


def _read(file: Path) -> Running | None:
    try:
        found = json.loads(file.read_text())
        return Running(Path(found["config"]), str(found["url"]), int(found["pid"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:  # somebody else's process is one
        return True
    except OSError:
        return False
    return True
