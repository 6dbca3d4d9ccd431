"""LossNotices: tell people what a Redis that lost data has forgotten of them.

Every process notes in files of its machine which turns Redis acknowledged, and which confirmed
actions began and how they ended. When a Redis that lost data has been resumed, it is asked about
each of them. People get one notice for what it no longer knows. Nothing is run from the files: a
lost turn may have been answered.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic_core import to_json
from redis.exceptions import RedisError

from sayso.channels.i18n.texts import Texts, TextsForTurn, brief, texts_for
from sayso.channels.types import Conversation, Reply, Scope, Turn, digest
from sayso.infra.storage.files import try_lock
from sayso.pending.action import ActionSigner, PendingAction
from sayso.pending.repository import ActionResult, Claim
from sayso.pending.sharded_scripts import ShardedScripts, shard_of
from sayso.pending.stored_action import StoredAction
from sayso.pending.turns import CHOICE_KIND, outbox_entry
from sayso.workers.wake_ups import WakeUp

log = logging.getLogger(__name__)

#: The folder's name in the data folder.
FOLDER = "acknowledged"
#: Seconds of notes in one file. A new file is begun with the first note after that.
FILE_SECONDS = 600
#: Files that are kept: at least 20 minutes of work. Hours without work delete nothing,
#: such as those of a halt.
KEPT_FILES = 3
#: Bytes of one file at most; what is noted after that is not remembered.
MAX_FILE_BYTES = 32 * 1024 * 1024
#: Seconds for which a note counts: less than a mailbox remembers the ids of events.
KEEP_SECONDS = 48 * 3600
#: Turns of one person that one notice is about at most: the last ones.
MAX_TURNS = 200
#: Seconds after a resume until lost turns are told:
#: other machines first tell what became of actions.
GRACE_SECONDS = 5.0
#: Seconds between two looks for a resume that this process did not notice by itself.
LOOK_SECONDS = 60.0
#: Seconds until the next look while Redis is away or halted.
AGAIN_SECONDS = 2.0
#: The collapse key of the notices: of those that wait in one conversation only the newest is sent.
LOST = "lost"
#: Characters of an outcome that a notice tells.
MAX_TOLD_CHARS = 3000
_LOCK = "lock"
_HANDLED = "handled.json"

#: One note, as it is stored.
StoredNote = dict[str, Any]


class NoteFiles:
    """Files of notes in a folder of one machine, for all its processes:
    appended to and never synced.

    They survive their process, not their machine.
    """

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._clock = clock
        self._lock = threading.Lock()
        #: The file that is open, which a forked process may share, and the number in its name.
        self._file = -1
        self._number = -1

    def add(self, note: StoredNote) -> None:
        """Append a note with the time, in Unix seconds.

        A failure is no error. Writes to the page cache only.
        """
        now = self._clock()
        line = to_json({"at": round(now, 3), **note}) + b"\n"
        try:
            with self._lock:
                if self._number != now // FILE_SECONDS:
                    self._begin(int(now // FILE_SECONDS))
                if os.fstat(self._file).st_size < MAX_FILE_BYTES:
                    # One write, so lines of several processes do not mix.
                    os.write(self._file, line)
        except OSError as exc:
            log.warning("loss.not_noted", extra={"reason": type(exc).__name__})

    def read(self) -> list[StoredNote]:
        """Return the notes that still count, in order. Lines that cannot be read are left out."""
        notes = []
        oldest = self._clock() - KEEP_SECONDS
        for path in self._paths():
            with contextlib.suppress(OSError):
                notes += [
                    note
                    for line in path.read_bytes().splitlines()
                    if (note := _parse(line, oldest))
                ]
        return notes

    def erase(self, channel: str, users: Collection[str]) -> int:
        """Overwrite the notes about people with these scope ids, on every channel for "".

        Return how many.

        Raises OSError.
        """
        count = 0
        for path in self._paths():
            with path.open("r+b") as file:
                for line in iter(file.readline, b""):
                    note = _parse(line, 0.0)
                    if note and note.get("user") in users and channel in ("", note["to"][0]):
                        # In place: other processes append to the file.
                        file.seek(-len(line), os.SEEK_CUR)
                        file.write(b" " * (len(line) - 1) + b"\n")
                        count += 1
        return count

    def alone(self) -> AbstractContextManager[bool]:
        """Return a lock whose block gets whether this process alone may tell what is in the files.

        Raises OSError.
        """
        return try_lock(self._folder / _LOCK)

    def handled(self) -> dict[str, int]:
        """Return the last resume of each shard that was handled, by the number of the shard."""
        try:
            return dict(json.loads((self._folder / _HANDLED).read_bytes()))
        except (OSError, ValueError, TypeError):
            return {}

    def set_handled(self, resumes: Mapping[str, int]) -> None:
        """Store the handled resumes, beside earlier ones of other shards. Raises OSError."""
        new_file = self._folder / f"{_HANDLED}.new"
        new_file.write_text(json.dumps({**self.handled(), **resumes}))
        new_file.replace(self._folder / _HANDLED)

    def _begin(self, number: int) -> None:
        """Open the file of a time, and remove old ones if it is new. Raises OSError."""
        self._number = -1
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._folder / f"{number}.jsonl"
        for old in [each for each in self._paths() if each != path][: 1 - KEPT_FILES]:
            old.unlink(missing_ok=True)
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        self._number = number

    def _paths(self) -> list[Path]:
        """Return the files, the oldest first."""
        return sorted(
            self._folder.glob("*.jsonl"),
            key=lambda path: int(path.stem) if path.stem.isdigit() else 0,
        )


def _parse(line: bytes, oldest: float) -> StoredNote | None:
    try:
        note = json.loads(line)
        return note if note["at"] >= oldest else None
    except (ValueError, TypeError, KeyError):  # erased, or cut off by a crash
        return None


class AcknowledgedWork:
    """Notes what Redis acknowledged: turns, and the beginning and end of confirmed actions.

    One per process.
    """

    def __init__(self, files: NoteFiles) -> None:
        self._files = files

    def note_turn(self, turn: Turn) -> None:
        """Note that a turn is in the mailbox, without its text."""
        self._files.add(
            {
                **_about(turn.scope),
                "event": turn.event_hash,
                "language": turn.language,
                "only_for": turn.user_id if turn.ephemeral else "",
            }
        )

    def note_effect(self, claim: Claim, what: PendingAction | ActionResult) -> None:
        """Note that an action begins, right before its effect, or how it ended."""
        if isinstance(what, PendingAction):
            self._note_start(claim, what)
        else:
            self._note_end(claim, what)

    def _note_start(self, claim: Claim, action: PendingAction) -> None:
        """Steps are not noted: people are told of their plan."""
        if not action.plan and action.kind != CHOICE_KIND:
            note = {
                "pid": claim.action_id,
                "by": claim.decided_by_event,
                "preview": brief(action.preview),
            }
            self._files.add({**_about(claim.scope), **note, "language": action.language})

    def _note_end(self, claim: Claim, result: ActionResult) -> None:
        note = {
            "pid": claim.action_id,
            "state": result.state,
            "outcome": result.outcome_text,
        }
        self._files.add({**_about(claim.scope), **note})


def _about(scope: Scope) -> StoredNote:
    place = scope.conversation
    return {"to": [place.channel, place.chat, place.thread], "user": scope.id}


@dataclass(frozen=True, slots=True)
class Loss:
    """A shard that was resumed: when, in Unix milliseconds, how long ago,
    and the open questions that were closed.
    """

    shard: int
    resumed_at: int
    ago_seconds: float
    closed: Sequence[tuple[StoredAction, str]] = ()

    @classmethod
    def of(cls, shard: int, answer: str) -> Loss | None:
        """Return the loss that a script reports; None if the shard was not resumed lately."""
        if not answer:
            return None
        loss = json.loads(answer)
        closed = tuple(
            (StoredAction.from_fields(each["action"]), each["address"]) for each in loss["closed"]
        )
        return cls(shard, loss["resumed_at"], (loss["now"] - loss["resumed_at"]) / 1000, closed)


class LossNotices:
    """Tells people what was forgotten after a resume.

    One per process; of each machine one process at a time works.

    `resumed` is set when this process notices a resume.
    """

    def __init__(
        self,
        scripts: ShardedScripts,
        wake_up: WakeUp,
        files: NoteFiles,
        *,
        texts_for_turn: TextsForTurn,
        signer: ActionSigner,
        resumed: threading.Event,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._scripts = scripts
        self._wake_up = wake_up
        self._files = files
        self._texts_for_turn = texts_for_turn
        self._signer = signer
        self._resumed = resumed
        self._sleep = sleep
        self._watching = 0

    def watch(self) -> None:
        """Tell people after each resume, in the background for the life of this process.

        Call it after a fork.
        """
        if self._watching != os.getpid():
            self._watching = os.getpid()
            threading.Thread(target=self._watch, name="loss-notices", daemon=True).start()

    def _watch(self) -> None:
        while True:
            seconds = LOOK_SECONDS
            try:
                self.tell()
            except RedisError:  # away or halted
                seconds = AGAIN_SECONDS
            except Exception:
                log.exception("loss.not_told")  # nothing would restart this thread
            self._resumed.wait(seconds)
            self._resumed.clear()

    def tell(self) -> int:
        """Tell people what the resumed shards have forgotten, and return how many notices.

        Safe to repeat.

        Raises redis.RedisError, OSError.
        """
        answers = enumerate(self._scripts.on_every_shard("loss", {}))
        losses = [loss for shard, answer in answers if (loss := Loss.of(shard, answer))]
        if not self._unhandled(losses):
            return 0
        with self._files.alone() as is_alone:
            losses = self._unhandled(losses) if is_alone else []
            if not losses:
                return 0
            notes = self._files.read()
            shards = {loss.shard for loss in losses}
            notes = [note for note in notes if shard_of(_conversation(note).id) in shards]
            count = sum(map(self._tell_effect, _effects(notes)))
            self._sleep(max(0.0, GRACE_SECONDS - min(loss.ago_seconds for loss in losses)))
            count += sum(
                self._tell_closed(loss, *question) for loss in losses for question in loss.closed
            )
            count += sum(self._tell_turns(turns) for turns in _by_person(notes))
            self._files.set_handled({str(loss.shard): loss.resumed_at for loss in losses})
        return count

    def _unhandled(self, losses: Iterable[Loss]) -> list[Loss]:
        handled = self._files.handled()
        return [loss for loss in losses if handled.get(str(loss.shard)) != loss.resumed_at]

    def _tell_effect(self, effect: StoredNote) -> bool:
        """Tell how an action ended, if Redis has forgotten it."""
        state = effect.get("state", "started")
        texts = texts_for(effect["language"])
        outcome = effect.get("outcome") or texts.unknown(effect["preview"])
        marks = [effect["pid"], digest(effect["by"])]
        what = {"marks": marks, "action_id": effect["pid"], "state": state, "outcome": outcome}
        short = texts.shortened(outcome, MAX_TOLD_CHARS)
        return self._send(
            effect, texts.forgot_outcome(short), texts, {**what, "until_ms": _ms(effect)}
        )

    def _tell_turns(self, turns: Sequence[StoredNote]) -> bool:
        """Tell one person since when their turns are lost, if any is."""
        turns = turns[-MAX_TURNS:]
        args = {
            "user": turns[0]["user"],
            "turns": [{"event": turn["event"], "at": _ms(turn)} for turn in turns],
        }
        conversation = _conversation(turns[0]).id
        answer = json.loads(self._scripts.run("forgotten_turns", conversation, args))
        lost = [turn for turn in turns if turn["event"] in answer["events"]]
        if not lost:
            return False
        # Workers note the language of their answers in Redis. `sayso web` may not read histories.
        language = answer["language"] or _newest_language(turns)
        texts = self._texts_for_turn(
            Turn("lost", _conversation(lost[0]), "", "", language=language)
        )
        text = texts.forgot_turns(lost[0]["at"])
        return self._send(
            lost[-1], text, texts, {"marks": [turn["event"] for turn in lost]}, collapse=LOST
        )

    def _tell_closed(self, loss: Loss, stored: StoredAction, to: str) -> bool:
        """Tell that a question was closed by the resume.

        This explains the lost turns of its user, too.
        """
        place = Conversation(*json.loads(to))
        scope = Scope(stored.action.user_id, place)
        if not stored.is_genuine(self._signer, scope):  # nothing of a modified record is repeated
            return False
        texts = texts_for(stored.action.language)
        args = {
            "marks": [stored.action_id],
            "question": stored.action_id,
            "until_ms": loss.resumed_at,
        }
        return self._send(
            {**_about(scope), "at": 0.0}, texts.forgot_question(stored.action.preview), texts, args
        )

    def _send(
        self,
        note: StoredNote,
        text: str,
        texts: Texts,
        args: Mapping[str, Any],
        *,
        collapse: str = "",
    ) -> bool:
        """Append a notice to the outbox, unless all its marks are set: then it was sent before."""
        place = _conversation(note)
        reply = Reply(
            text, language=texts.language, only_for=note.get("only_for", ""), collapse=collapse
        )
        job = self._wake_up(place.id)
        named = {"user": note["user"], "user_message_at": _ms(note), **args, **job.names}
        answer = self._scripts.run(
            "tell_loss", place.id, named, outbox_entry(place, reply), *job.fields
        )
        if answer == "sent":
            log.warning("loss.told", extra={"conversation": place.id, "user": note["user"]})
        return bool(answer == "sent")


def _conversation(note: StoredNote) -> Conversation:
    return Conversation(*note["to"])


def _newest_language(turns: Sequence[StoredNote]) -> str:
    """Return the last language that the platform named, "" if it named none."""
    languages = [turn["language"] for turn in turns if turn["language"]]
    return languages[-1] if languages else ""


def _ms(note: StoredNote) -> int:
    return round(float(note["at"]) * 1000)


def _effects(notes: Iterable[StoredNote]) -> list[StoredNote]:
    """Return one note for each action that began: with its end, if that was noted."""
    effects: dict[str, StoredNote] = {}
    for note in notes:
        if "preview" in note:
            effects[note["pid"]] = note
        elif (pid := note.get("pid")) in effects:
            effects[pid] = {**effects[pid], **note}
    return list(effects.values())


def _by_person(notes: Iterable[StoredNote]) -> list[list[StoredNote]]:
    """Return the turns of each person in each conversation, in order."""
    people: defaultdict[tuple[str, ...], list[StoredNote]] = defaultdict(list)
    for note in notes:
        if "event" in note:
            people[(*note["to"], note["user"], note["only_for"])].append(note)
    return list(people.values())
