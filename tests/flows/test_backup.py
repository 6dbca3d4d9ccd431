"""Backup under load: the machine is lost, the bot is restored on an empty one, and repeats no action."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path

from sayso.examples.invoices import FILE
from tests.config.processes import short_folder
from tests.flows.load import Load
from tests.flows.system import HurriedPerson, System, TelegramPerson, WhatsAppPerson, until

#: The invoices that people delete: more than the load before and after the backup needs.
INVOICES = [
    f"INV-{n}"
    for n in (1, 3, 4, 7, 8, 11, 12, 15, 18, 19, 22, 23, 26, 29, 31, 34, 35, 38, 40, 45, 47, 51)
]


def test_backup_under_load_is_restored_on_an_empty_machine():
    """The audit log verifies, a question and an approved person are there, and each invoice is deleted once."""
    with short_folder() as folder, short_folder() as old, short_folder() as new:
        file = folder / "backup.tar.gz"
        with Guarded(old, workers=1) as system:
            asked, guest = TelegramPerson(system, 61), HurriedPerson(system, 62)
            system.printed("people", "approve", "quick-tg", guest.chat)
            asked.say("delete invoice INV-60")
            asked.hears()
            load = Load([TelegramPerson(system, 63), WhatsAppPerson(system, 64)], INVOICES[:-4])
            until(lambda: load.done)
            _is_killed_without_a_trace(system, file)
            report = json.loads(system.printed("backup", str(file), "--with-keys", "--json"))
            load.stop()
            later = Load(load.people, INVOICES[-4:])
            until(lambda: len(later.done) == 4)
            later.stop()
            asked.say("yes")
            assert "is deleted" in asked.hears()[0]["text"]
            world = system.data / FILE
            shutil.copy(world, folder / FILE)
        assert (file.stat().st_mode & 0o777, report["counts"]["people"]) == (0o600, 1)
        assert report["counts"]["conversations"] >= 3
        shutil.rmtree(old)
        restored = Restored(new, file, folder / FILE)
        with restored as system:
            assert "0 faults: the chain holds" in restored.report
            assert "open questions are closed" in restored.report
            asked.system = system
            asked._read = 0
            until(system.is_settled)
            before = len(system.ledger(asked.chat))
            asked.say("yes")
            until(lambda: len(system.ledger(asked.chat)) > before)
            assert "cannot tell" in system.ledger(asked.chat)[-1]["text"].lower()
            guest.system, guest._read = system, len(system.ledger(guest.chat))
            guest.say("hello")
            assert "You said: hello" in guest.hears()[0]["text"]  # the approval is still there
            newcomer = TelegramPerson(system, 65)
            newcomer.say("delete invoice INV-58")
            newcomer.hears()
            newcomer.say("yes")
            assert "is deleted" in newcomer.hears()[0]["text"]
            until(lambda: "0 faults" in system.printed("audit", "verify"))
            with closing(sqlite3.connect(system.data / FILE)) as database:
                counts = database.execute(
                    "SELECT id, count(*) FROM ledger WHERE what = 'delete' GROUP BY id"
                ).fetchall()
            assert {number for _, number in counts} == {1}
            assert {"INV-58", "INV-60", *load.done, *later.done} <= {
                invoice for invoice, _ in counts
            }


class Guarded(System):
    """A system with one channel that answers approved people only."""

    def __init__(self, folder: Path, *, workers: int) -> None:
        super().__init__(folder, workers=workers)
        self.config.write_text(
            self.config.read_text().replace("confirm_ttl: 0.2", "confirm_ttl: 0.2, access: {}")
        )


class Restored(Guarded):
    """A system on an empty machine, restored from a backup before its processes start."""

    def __init__(self, folder: Path, backup: Path, world: Path) -> None:
        super().__init__(folder, workers=1)
        self._backup, self._world, self.report = backup, world, ""
        self.config = self.config.rename(
            backup.parent / self.config.name
        )  # the old one is in the backup

    def process(self, command: str, *args: str) -> subprocess.Popen[bytes]:
        """Restore before the first process starts."""
        if not self.report:
            self.report = self.printed("restore", str(self._backup))
            shutil.copy(
                self._world, self.data / FILE
            )  # invoices are the world outside: no backup brings them back
        return super().process(command, *args)


def _is_killed_without_a_trace(system: System, file: Path) -> None:
    """Kill a backup midway: no file has its name, and the next backup works."""
    process: subprocess.Popen[bytes] = system.process("backup", str(file))
    until(lambda: (system.data / ".backup").exists() or process.poll() is not None)
    time.sleep(0.05)
    process.kill()
    process.wait()
    file.unlink(missing_ok=True)  # it was faster
