"""LossNotices: tell people what a Redis that lost data has forgotten of them.

Every process notes in files of its machine which turns Redis acknowledged, and which confirmed
actions began and how they ended (AcknowledgedWork, NoteFiles). After a Redis that lost data was
resumed, it is asked about each of them, and people get a notice of what it no longer knows. Nothing
is run from the files, because a lost turn may have been answered.
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
from sayso.pending.turn_changes import outbox_entry
from sayso.pending.turns import CHOICE_KIND
from sayso.workers.wake_ups import WakeUp

log = logging.getLogger(__name__)

#: The folder's name in the data folder.
FOLDER = "acknowledged"
#: Notes of how many seconds are in one file. A new file is begun with the first note after that.
FILE_SECONDS = 600
#: How many files are kept: at least 20 minutes of work. Time without work, such as that of a halt,
#: deletes no file.
MAX_FILES = 3
#: The maximum size of one file, in bytes. What is noted after that is not remembered.
MAX_FILE_BYTES = 32 * 1024 * 1024
#: For how many seconds a note counts: less than a mailbox remembers events.
KEEP_SECONDS = 48 * 3600
#: How many turns of one person a notice is about: the last ones.
MAX_TURNS = 200
#: How many seconds after a resume people are told of lost turns. Before that, other machines tell
#: what became of actions, which explains some of the turns.
GRACE_SECONDS = 5.0
#: Seconds between two looks for a resume that this process did not notice by itself.
LOOK_SECONDS = 60.0
#: Seconds until the next look while Redis is away or halted.
AGAIN_SECONDS = 2.0
#: The collapse key of notices of lost turns: of those that wait in one conversation, only the
#: newest is sent.
LOST = "lost"
#: How many characters of an outcome a notice repeats.
MAX_OUTCOME_CHARS = 3000
_LOCK = "lock"
_HANDLED = "handled.json"

#: One note, as it is stored. All notes have `at` (Unix seconds), `to` (channel, chat and thread)
#: and `user` (the id of the scope). A note of a turn has `event` (the digest of its event's id),
#: `language` and `only_for`; the start of an action has `pid` (its id), `by` (the event that
#: decided), `preview` and `language`; its end has `pid`, `state` and `outcome`.
StoredNote = dict[str, Any]


class NoteFiles:
    """Files of notes in a folder of one machine, which all its processes share.

    The files are never synced to the disk: they survive their process, not their machine. One
    object per process.
    """

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._clock = clock
        self._lock = threading.Lock()
        #: The descriptor of the open file, which a forked process may share; -1 for none.
        self._file = -1
        #: The number in the name of the open file, which says from when its notes are; -1 for none.
        self._number = -1

    def add(self, note: StoredNote) -> None:
        """Append a note with the time. A failure is only logged."""
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
        notes: list[StoredNote] = []
        oldest = self._clock() - KEEP_SECONDS
        for path in self._paths():
            # Another process may have removed the file.
            with contextlib.suppress(OSError):
                for line in path.read_bytes().splitlines():
                    note = _parse(line, oldest)
                    if note:
                        notes.append(note)
        return notes

    def erase(self, channel: str, users: Collection[str]) -> int:
        """Overwrite the notes about people with these scope ids. Return how many.

        `channel`: "" for every channel. Raises OSError.
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
        """Return a context that is true if this process alone may tell what is in the files.

        Raises OSError.
        """
        return try_lock(self._folder / _LOCK)

    def handled(self) -> dict[str, int]:
        """Return the last resume that was handled of each shard, in Unix milliseconds.

        The keys are the numbers of the shards, as texts.
        """
        try:
            return dict(json.loads((self._folder / _HANDLED).read_bytes()))
        except (OSError, ValueError, TypeError):
            return {}

    def set_handled(self, resumes: Mapping[str, int]) -> None:
        """Store which resumes were handled. Those of other shards stay. Raises OSError."""
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
        others = [each for each in self._paths() if each != path]
        # All but the newest stay out: the new file is one of the MAX_FILES that are kept.
        for old in others[: 1 - MAX_FILES]:
            old.unlink(missing_ok=True)
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        self._number = number

    def _paths(self) -> list[Path]:
        """Return the files, the oldest first."""
        return sorted(self._folder.glob("*.jsonl"), key=_number_of)


def _number_of(path: Path) -> int:
    """Return the number in the name of a file, 0 for another name."""
    if path.stem.isdigit():
        return int(path.stem)
    return 0


def _parse(line: bytes, oldest: float) -> StoredNote | None:
    """Return the note of a line. None for one before `oldest` (Unix seconds) or without a note."""
    try:
        note: StoredNote = json.loads(line)
        is_old = note["at"] < oldest
    except (ValueError, TypeError, KeyError):
        # The note was erased, or cut off by a crash.
        return None
    if is_old:
        return None
    return note


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
        """Note that an action begins, right before its effect, or how it ended.

        `what`: the action that begins, or the result.
        """
        if isinstance(what, PendingAction):
            self._note_start(claim, what)
        else:
            self._note_end(claim, what)

    def _note_start(self, claim: Claim, action: PendingAction) -> None:
        """Note that an action begins. Of a step nothing is noted: people are told of its plan."""
        if action.plan or action.kind == CHOICE_KIND:
            return
        note = {
            "pid": claim.action_id,
            "by": claim.decided_by_event,
            "preview": brief(action.preview),
            "language": action.language,
        }
        self._files.add({**_about(claim.scope), **note})

    def _note_end(self, claim: Claim, result: ActionResult) -> None:
        """Note how an action ended."""
        note = {
            "pid": claim.action_id,
            "state": result.state,
            "outcome": result.outcome_text,
        }
        self._files.add({**_about(claim.scope), **note})


def _about(scope: Scope) -> StoredNote:
    """Return the fields that say which person a note is about, and where."""
    place = scope.conversation
    return {"to": [place.channel, place.chat, place.thread], "user": scope.id}


@dataclass(frozen=True, slots=True)
class Loss:
    """A shard that lost data and was resumed."""

    #: The number of the shard.
    shard: int
    #: When it was resumed, in Unix milliseconds.
    resumed_at: int
    #: How many seconds ago that was.
    ago_seconds: float
    #: The open questions that were closed then, each with its address as JSON.
    closed: Sequence[tuple[StoredAction, str]] = ()

    @classmethod
    def of(cls, shard: int, answer: str) -> Loss | None:
        """Return the loss that `report_loss.lua` reports, None if the shard was not resumed lately."""
        if not answer:
            return None
        loss = json.loads(answer)
        closed = [
            (StoredAction.from_fields(each["action"]), each["address"]) for each in loss["closed"]
        ]
        ago_seconds = (loss["now"] - loss["resumed_at"]) / 1000
        return cls(shard, loss["resumed_at"], ago_seconds, closed)


class LossNotices:
    """Tells people what was forgotten after a resume.

    One per process. Of each machine, one process at a time does the work.
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
        """`files`: what the processes of this machine have noted. `signer`: verifies the actions
        that are told of. `resumed`: set when this process notices a resume.
        """
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
            except RedisError:
                # Redis is away or halted.
                seconds = AGAIN_SECONDS
            except Exception:
                # Nothing would restart this thread.
                log.exception("loss.not_told")
            self._resumed.wait(seconds)
            self._resumed.clear()

    def tell(self) -> int:
        """Tell people what the resumed shards have forgotten. Return how many notices were sent.

        Safe to repeat. Raises redis.RedisError, OSError.
        """
        losses: list[Loss] = []
        for shard, answer in enumerate(self._scripts.on_every_shard("report_loss")):
            loss = Loss.of(shard, answer)
            if loss:
                losses.append(loss)
        if not self._unhandled(losses):
            return 0

        with self._files.alone() as is_alone:
            if not is_alone:
                return 0
            # Another process may have handled some of them before this one got the lock.
            losses = self._unhandled(losses)
            if not losses:
                return 0
            count = self._tell_all(losses)
            self._files.set_handled({str(loss.shard): loss.resumed_at for loss in losses})
        return count

    def _tell_all(self, losses: Sequence[Loss]) -> int:
        """Tell people what was lost. Return how many notices were sent.

        Actions come first, then closed questions: each explains the lost turns of its user, too.
        """
        shards = {loss.shard for loss in losses}
        notes = [note for note in self._files.read() if shard_of(_conversation(note).id) in shards]

        count = 0
        for effect in _effects(notes):
            count += self._tell_effect(effect)

        # Other machines tell of their actions in this time.
        youngest = min(loss.ago_seconds for loss in losses)
        self._sleep(max(0.0, GRACE_SECONDS - youngest))

        for loss in losses:
            for action, address in loss.closed:
                count += self._tell_closed(loss, action, address)
        for turns in _by_person(notes):
            count += self._tell_turns(turns)
        return count

    def _unhandled(self, losses: Iterable[Loss]) -> list[Loss]:
        """Return the losses that no process of this machine has told people of."""
        handled = self._files.handled()
        return [loss for loss in losses if handled.get(str(loss.shard)) != loss.resumed_at]

    def _tell_effect(self, effect: StoredNote) -> bool:
        """Tell how an action ended, if Redis has forgotten it. Return whether a notice was sent."""
        state = effect.get("state", "started")
        texts = texts_for(effect["language"])
        outcome = effect.get("outcome") or texts.unknown(effect["preview"])
        marks = [effect["pid"], digest(effect["by"])]
        args = {
            "marks": marks,
            "action_id": effect["pid"],
            "state": state,
            "outcome": outcome,
            "until_ms": _ms(effect),
        }
        short = texts.shortened(outcome, MAX_OUTCOME_CHARS)
        return self._send(effect, texts.forgot_outcome(short), texts, args)

    def _tell_turns(self, turns: Sequence[StoredNote]) -> bool:
        """Tell one person since when their turns are lost, if any is.

        `turns`: the notes of their turns in one conversation. Return whether a notice was sent.
        """
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

    def _tell_closed(self, loss: Loss, stored: StoredAction, address: str) -> bool:
        """Tell that a question was closed by the resume. Return whether a notice was sent."""
        place = Conversation(*json.loads(address))
        scope = Scope(stored.action.user_id, place)
        # Nothing of a record that was changed is repeated.
        if not stored.is_genuine(self._signer, scope):
            return False
        texts = texts_for(stored.action.language)
        args = {
            "marks": [stored.action_id],
            "question": stored.action_id,
            "until_ms": loss.resumed_at,
        }
        # It is not known when the user last wrote.
        note = {**_about(scope), "at": 0.0}
        return self._send(note, texts.forgot_question(stored.action.preview), texts, args)

    def _send(
        self,
        note: StoredNote,
        text: str,
        texts: Texts,
        args: Mapping[str, Any],
        *,
        collapse: str = "",
    ) -> bool:
        """Append a notice to the outbox, unless its user was told before. Return whether it was.

        `note`: about which person. `args`: those of `tell_loss.lua` that say what was forgotten.
        """
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
    """Return the conversation that a note is about."""
    return Conversation(*note["to"])


def _newest_language(turns: Sequence[StoredNote]) -> str:
    """Return the last language that the platform named, "" if it named none."""
    for turn in reversed(turns):
        if turn["language"]:
            return str(turn["language"])
    return ""


def _ms(note: StoredNote) -> int:
    """Return the time of a note, in Unix milliseconds."""
    return round(float(note["at"]) * 1000)


def _effects(notes: Iterable[StoredNote]) -> list[StoredNote]:
    """Return one note for each action that began: with its end, if that was noted."""
    effects: dict[str, StoredNote] = {}
    for note in notes:
        action_id = note.get("pid")
        if action_id is None:
            continue
        if "preview" in note:
            effects[action_id] = note
        elif action_id in effects:
            effects[action_id] = {**effects[action_id], **note}
    return list(effects.values())


def _by_person(notes: Iterable[StoredNote]) -> list[list[StoredNote]]:
    """Return the turns of each person in each conversation, in order."""
    people: defaultdict[tuple[str, ...], list[StoredNote]] = defaultdict(list)
    for note in notes:
        if "event" in note:
            people[(*note["to"], note["user"], note["only_for"])].append(note)
    return list(people.values())
