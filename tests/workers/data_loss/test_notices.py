"""Notices of a loss: people are told once what was lost, and nothing is run again."""

from __future__ import annotations

import json
import threading

import pytest
from redis.exceptions import RedisError

from sayso.channels.i18n.texts import texts_for
from sayso.channels.types import Conversation, Turn, digest
from sayso.pending.action import ActionSigner
from sayso.workers.data_loss.guard import DataLossGuard
from sayso.workers.data_loss.notices import (
    FILE_SECONDS,
    KEEP_SECONDS,
    MAX_FILES,
    AcknowledgedWork,
    LossNotices,
    NoteFiles,
)
from sayso.workers.data_loss.resume import resume
from sayso.workers.wake_ups import no_wake_up
from tests.contracts.rigs import CHAT, Rig, voice
from tests.workers.data_loss.test_resume import HALTED, WRITE_COUNTER, connect_like
from tests.workers.fakes import Bot
from tests.workers.servers import put_back, saved

FORGOT, CLOSED, KNOWN = (
    "made me forget what you wrote from",
    "so I closed this question",
    "what I still know",
)
UNKNOWN_ANSWER = "I do not know what you are answering"


@pytest.fixture
def rig(redis_client, tmp_path):
    """Return a conversation in Redis, whose acknowledged work is noted on a disk."""
    rig = Rig(redis_client, work=AcknowledgedWork(NoteFiles(tmp_path)))
    rig.files = NoteFiles(tmp_path)
    rig.data_loss_guard = DataLossGuard(connect_like(redis_client))
    rig.data_loss_guard.check_server()
    return rig


def notices(rig, files=None) -> LossNotices:
    """Return the notices of a new process."""
    return LossNotices(
        rig.scripts, no_wake_up, files or rig.files, texts_for_turn=voice, signer=ActionSigner(["key"]),
        resumed=threading.Event(), sleep=lambda _: None,
    )  # fmt: skip


def lose(rig, *happens) -> None:
    """Let things happen, let Redis lose them, and resume it."""
    before = saved(rig.client)
    for each in happens:
        each()
    rig.data_loss_guard.check_server()
    put_back(rig.client, before)
    rig.data_loss_guard.check_server()
    assert rig.client.exists(HALTED)
    resume(rig.client)


def texts_after(bot: Bot, rig) -> list[str]:
    """Return what the bot sends when it tells people of the loss."""
    sent = len(bot.channel.texts)
    notices(rig).tell()
    bot.work()
    return bot.channel.texts[sent:]


def test_lost_turns_are_told_once(rig):
    """A process that starts later, and another machine with the same notes, tell nothing again."""
    bot = Bot(rig, lines=["one", "two", "three"])
    lose(rig, lambda: bot.say("hello"), lambda: bot.say("is anybody there?"))
    (text,) = texts_after(bot, rig)
    assert FORGOT in text
    assert " UTC" in text
    (rig.files._folder / "handled.json").unlink()
    assert texts_after(bot, rig) == []


def test_known_turns_are_not_told(rig):
    """A turn that waits was not lost: it is answered."""
    bot = Bot(rig, lines=["one", "two"])
    bot.hear("hello")
    lose(rig, lambda: rig.client.incr(WRITE_COUNTER))
    assert texts_after(bot, rig) == ["one"]


def test_nothing_is_told_without_a_resume(rig):
    """Before an operator resumes the server, missing keys prove nothing."""
    bot = Bot(rig, lines=["one"])
    bot.say("hello")
    rig.client.delete(*rig.client.scan_iter("sayso:*:event:*"))
    assert texts_after(bot, rig) == []


def test_effect_whose_question_is_lost_too_is_told_as_it_ended(rig):
    """This notice explains the lost turns before it, so they get no notice of their own."""
    bot = Bot(rig, "A")
    lose(rig, lambda: bot.say("delete it"), lambda: bot.say("yes"))
    (text,) = texts_after(bot, rig)
    assert KNOWN in text
    assert text.endswith("deleted A")
    assert bot.deleted == ["A"]


def test_lost_turn_after_a_known_effect_is_told(rig):
    """The effect does not explain a message that was written after it."""
    bot = Bot(rig, "A", lines=["fine"])
    lose(rig, lambda: bot.say("delete it"), lambda: bot.say("yes"), lambda: bot.say("thanks"))
    known, lost = texts_after(bot, rig)
    assert KNOWN in known
    assert FORGOT in lost


def test_effect_of_a_known_question_is_told_and_repeated_to_a_second_yes(rig):
    """The resume closed the question as unknown. The notes of the worker have the real outcome."""
    bot = Bot(rig, "A")
    bot.say("delete it")
    lose(rig, lambda: bot.say("yes"))
    (text,) = texts_after(bot, rig)
    assert text.endswith("deleted A")
    assert bot.say("yes") == "deleted A"
    assert bot.deleted == ["A"]


def test_effect_that_was_cut_off_is_told_as_unknown(rig):
    """Its worker died before it noted how the action ended."""
    bot = Bot(rig, "A")
    lose(rig, lambda: bot.say("delete it"), lambda: bot.hear("yes"), lambda: bot.die_after("start"))
    (text,) = texts_after(bot, rig)
    assert KNOWN in text
    assert "I cannot tell whether it finished" in text
    assert bot.deleted == []


def test_lost_yes_whose_effect_never_began_is_told(rig):
    """The notice says that the outcome is unknown, and the action is not run later."""
    bot = Bot(rig, "A", lines=["small talk"])
    rig.pass_time(-600)
    bot.say("delete it")
    rig.pass_time(600)  # its window is over when Redis is resumed
    lose(rig, lambda: bot.hear("yes"))
    (text,) = texts_after(bot, rig)
    assert FORGOT in text
    assert bot.deleted == []


def test_open_question_is_told_to_be_closed(rig):
    """Its user had not answered. A later yes runs nothing."""
    bot = Bot(rig, "A")
    bot.say("delete it")
    lose(rig, lambda: rig.client.incr(WRITE_COUNTER))
    (text,) = texts_after(bot, rig)
    assert CLOSED in text
    assert "Delete A" in text
    assert "cannot tell" in bot.say("yes")
    assert bot.deleted == []


def test_question_whose_answer_waits_is_told_once(rig):
    """The yes is answered after the resume, so no notice is sent, even if the question had been repeated."""
    bot = Bot(rig, "A")
    bot.say("delete it")
    assert "could not tell" in bot.say("ok")
    bot.hear("yes")
    lose(rig, lambda: rig.client.incr(WRITE_COUNTER))
    assert "cannot tell" in bot.work()
    assert texts_after(bot, rig) == []


def test_closed_question_with_a_changed_record_is_not_repeated(rig):
    """Anybody who can write to Redis may have changed its text."""
    bot = Bot(rig, "A")
    bot.say("delete it")
    (key,) = rig.client.scan_iter("*:pending:*")
    lose(rig, lambda: rig.client.incr(WRITE_COUNTER))
    rig.client.hset(key, "record", rig.client.hget(key, "record").replace("Delete A", "Delete B"))
    assert texts_after(bot, rig) == []


@pytest.mark.parametrize("answer", ["yes", "no"])
def test_yes_without_a_question_is_explained_after_a_loss(rig, answer):
    """Its question was lost. A second yes goes to the model."""
    bot = Bot(rig, "A", lines=["small talk"])
    lose(rig, lambda: bot.say("delete it"))
    assert UNKNOWN_ANSWER in bot.say(answer)
    assert bot.say(answer) == "small talk"
    assert bot.deleted == []


def test_tap_on_a_lost_question_says_so(rig):
    """The reply does not claim that nothing was done: the action may have run."""
    bot = Bot(rig, "A")
    taps = []
    lose(
        rig,
        lambda: bot.say("delete it"),
        lambda: taps.append(bot.buttons[0].data),
        lambda: bot.say("yes"),
    )
    assert UNKNOWN_ANSWER in bot.say(tap=taps[0])
    assert bot.deleted == ["A"]


def test_yes_without_a_question_goes_to_the_model_if_nothing_was_lost(rig):
    """The explanation is given only after a resume."""
    bot = Bot(rig, lines=["small talk"])
    assert bot.say("yes") == "small talk"


def test_notices_that_were_interrupted_are_sent_by_the_next_process(rig):
    """A notice that was sent before is not sent again."""
    bot = Bot(rig, lines=["one", "two"])
    other = Turn("e-other", Conversation("chat", "other"), "bo", "hello")
    lose(rig, lambda: bot.say("hello"), lambda: rig.accept(other))
    cut, send = notices(rig), rig.scripts.run
    told = []

    def die_at_second(name, *args):
        if name == "tell_loss" and told:
            raise RedisError("killed")
        told.extend([name] if name == "tell_loss" else [])
        return send(name, *args)

    cut._scripts = type(
        "Dying",
        (),
        {"run": staticmethod(die_at_second), "on_every_shard": rig.scripts.on_every_shard},
    )
    with pytest.raises(RedisError):
        cut.tell()
    assert notices(rig).tell() == 1


def test_one_process_of_a_machine_tells_at_a_time(rig):
    """The other processes of the machine leave it to that one."""
    bot = Bot(rig, lines=["one"])
    lose(rig, lambda: bot.say("hello"))
    with rig.files.alone() as is_alone:
        assert is_alone
        assert notices(rig).tell() == 0
    assert notices(rig).tell() == 1


def test_notice_is_in_the_language_in_which_the_person_writes(rig):
    """The platform does not report the language. Redis has that of the last answer which was not lost."""
    bot = Bot(rig, lines=["eins", "zwei"])
    bot.behave(languages=["de", "en"])
    bot.say("Bitte schreibe mir heute noch einen kurzen Text")
    lose(rig, lambda: bot.say("ja"))
    german = notices(rig)
    german._texts_for_turn = lambda turn: texts_for(turn.language)
    assert german.tell() == 1
    assert bot.work().startswith("Durch einen Ausfall")


def test_notes_hold_no_text_of_a_turn(rig):
    """They say only who wrote, where and when."""
    rig.accept(Turn("e1", CHAT, "ana", "my secret is in this message", language="en"))
    (path,) = rig.files._folder.glob("*.jsonl")
    assert "secret" not in path.read_text()
    assert json.loads(path.read_text())["language"] == "en"
    assert path.stat().st_mode & 0o777 == 0o600


def test_notice_without_an_earlier_answer_is_in_the_language_of_the_platform(rig):
    """The first message of a conversation is lost with the conversation."""
    rig.client.incr(WRITE_COUNTER)
    lose(rig, lambda: rig.accept(Turn("e1", CHAT, "ana", "42", language="de")))
    german = notices(rig)
    german._texts_for_turn = lambda turn: texts_for(turn.language)
    assert german.tell() == 1
    assert "Durch einen Ausfall" in rig.mailbox.lease(CHAT.id, "w1")[1].text


def test_notes_of_a_person_can_be_erased(tmp_path):
    """Notes of other people stay, also those of the same id on another channel."""
    files = NoteFiles(tmp_path)
    work = AcknowledgedWork(files)
    for event, channel, user in (
        ("e1", "chat", "ana"),
        ("e2", "chat", "bo"),
        ("e3", "desk", "ana"),
    ):
        work.note_turn(Turn(event, Conversation(channel, "room"), user, "hello"))
    ana = Turn("", CHAT, "ana").scope.id
    assert files.erase("chat", [ana]) == 1
    work.note_turn(Turn("e4", CHAT, "ana", "hello"))
    assert [note["event"] for note in files.read()] == list(map(digest, ("e2", "e3", "e4")))
    assert files.erase("", [ana]) == 2
    assert [note["event"] for note in files.read()] == [digest("e2")]


def test_old_notes_are_removed_by_new_ones_only(tmp_path):
    """Hours without notes, as during a halt, remove none. Notes of some days ago are not used."""
    now = [1_000_000.0]
    files = NoteFiles(tmp_path, clock=lambda: now[0])
    for number in range(MAX_FILES + 2):
        files.add({"n": number})
        now[0] += FILE_SECONDS
    now[0] += 10 * FILE_SECONDS
    assert [note["n"] for note in files.read()] == [2, 3, 4]
    now[0] += KEEP_SECONDS
    assert files.read() == []


def test_note_that_cannot_be_written_stops_nothing(tmp_path):
    """The turn is in Redis all the same."""
    (tmp_path / "file").touch()
    NoteFiles(tmp_path / "file").add({"n": 1})
    assert NoteFiles(tmp_path / "file").read() == []
