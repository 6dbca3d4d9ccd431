"""LongTexts: how much of a long text stays in Redis, and how much of all long texts the model sees."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sayso.agent import Message, ToolCall
from sayso.agent.channel.long_texts import (
    BEGINNING_CHARS,
    MAX_CUT_CHARS,
    MAX_HISTORY_CHARS,
    MAX_TEXT_CHARS,
    LongTexts,
    TextFiles,
)
from sayso.agent.messages import Role
from sayso.agent.run.long_results import (
    MAX_WHOLE_CHARS,
    digest_id,
    shorten_for_history,
    shorten_result,
)
from sayso.agent.tools.text_cuts import shorten
from sayso.infra.storage.objects import LocalObjects

ANA = "a" * 20
LONG = "x" * 60_000


class Full:
    """A store whose disk is full and then fails."""

    def put(self, owner: str, text: str) -> str:
        """Fail."""
        raise OSError(28, "No space left on device")

    def get(self, owner: str, ref: str) -> str:
        """Fail."""
        raise OSError(5, "Input/output error")


class Untouchable:
    """A store that must not be used."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the disk was touched: {name}")


def through_redis(texts: LongTexts, messages: Sequence[Message]) -> list[Message]:
    """Return the messages of a turn as the next turn loads them."""
    kept = [message.to_dict() for message in messages]
    asyncio.run(texts.move_to_files(kept))
    return [Message.from_dict(each) for each in json.loads(json.dumps(kept))]


def shown(texts: LongTexts, messages: Sequence[Message]) -> list[str]:
    """Return the text of each message as the model sees it."""
    return [message.content for message in texts.read_history(messages)]


def pasted(content: str) -> Message:
    """Return a message of a person."""
    return Message(Role.USER, content)


def result(content: str) -> Message:
    """Return a tool result message."""
    return Message(Role.TOOL, content, tool_call_id="1", tool_name="look")


def test_missing_text_is_replaced_by_its_beginning_and_a_note(tmp_path: Path):
    """The text was swept, or lies on a machine that does not share the folder: the turn continues."""
    kept = through_redis(LongTexts(TextFiles(LocalObjects(tmp_path / "here")), ANA), [pasted(LONG)])
    elsewhere = LongTexts(TextFiles(LocalObjects(tmp_path / "there")), ANA)
    assert shown(elsewhere, kept) == [
        "x" * 1000 + " [the rest is not there any more, was 60000 characters]"
    ]


def test_failing_disk_leaves_a_cut_text_in_redis():
    """The text is cut to the length used without files, and the turn continues."""
    texts = LongTexts(Full(), ANA)
    kept = through_redis(texts, [pasted(LONG)])
    assert kept == [pasted(shorten(LONG, MAX_CUT_CHARS))]
    assert asyncio.run(texts.store([LONG])) == [None]


@pytest.mark.parametrize("ref", ["../../secret_keys", "", "f" * 64, ["x"], None])
def test_forged_reference_reads_nothing(tmp_path: Path, ref: Any):
    """A changed reference in Redis reads no other file and breaks no turn."""
    (tmp_path / "secret_keys").write_text("s3cret")
    forged = {"role": "user", "content": "beginning", "text_file": {"ref": ref, "chars": 9}}
    seen = shown(
        LongTexts(TextFiles(LocalObjects(tmp_path / "texts")), ANA), [Message.from_dict(forged)]
    )
    assert seen == ["beginning [the rest is not there any more, was 9 characters]"]


def test_short_texts_use_no_disk():
    """Neither storing nor reading them touches the disk, up to the longest user message."""
    texts = LongTexts(Untouchable(), ANA)
    short = [result("x" * MAX_WHOLE_CHARS), Message(Role.USER, "hello")]
    assert shown(texts, through_redis(texts, short)) == [message.content for message in short]


def test_stored_text_is_not_written_again(tmp_path: Path):
    """The next turn only passes its reference on."""
    kept = through_redis(LongTexts(TextFiles(LocalObjects(tmp_path)), ANA), [pasted(LONG)])
    assert through_redis(LongTexts(Untouchable(), ANA), kept) == kept


def test_model_sees_the_newest_text_whole_and_older_ones_as_far_as_space_allows(tmp_path: Path):
    """A long history costs no more than one long text: next comes part of a text, then only beginnings."""
    texts = LongTexts(TextFiles(LocalObjects(tmp_path)), ANA)
    seen = shown(texts, through_redis(texts, [pasted(f"{at}{LONG}") for at in range(4)]))
    assert seen[3] == f"3{LONG}"
    assert seen[2] == shorten(f"2{LONG}", len(seen[2]))
    assert MAX_HISTORY_CHARS / 2 < len(seen[2]) + len(seen[3]) <= MAX_HISTORY_CHARS
    assert seen[1] == f"1{LONG}"[:BEGINNING_CHARS] + " [cut, was 60001 characters]"


def test_older_texts_change_seldom_while_new_ones_come(tmp_path: Path):
    """A vendor's cache knows a request again up to where it differs, so room is made for several texts at once."""
    texts = LongTexts(TextFiles(LocalObjects(tmp_path)), ANA)
    kept = through_redis(texts, [pasted(f"{at:02}" + "x" * 9998) for at in range(40)])
    turns = [shown(texts, kept[:count]) for count in range(1, 41)]
    changed = [at for at in range(1, 40) if turns[at][:-1] != turns[at - 1]]
    assert changed == [10, 15, 20, 25, 30, 35]
    assert all(turn[-1] == f"{at:02}" + "x" * 9998 for at, turn in enumerate(turns))


def test_result_is_stored_whole_and_its_beginning_and_end_stay_in_redis(tmp_path: Path):
    """The model reads the same text in each later turn, whether its file is there or not."""
    texts = LongTexts(TextFiles(LocalObjects(tmp_path)), ANA)
    for messages in ([result(LONG)], shorten_for_history([result(LONG)])):
        (kept,) = through_redis(texts, messages)
        assert shown(texts, [kept]) == [shorten_result(LONG, 1600, digest_id(LONG))]
        assert kept.text_file is not None
        assert asyncio.run(texts.load(kept.text_file)) == LONG


def test_result_without_a_file_names_no_way_to_read_on():
    """More of it stays in Redis, as there is nothing else."""
    (kept,) = through_redis(LongTexts(Full(), ANA), shorten_for_history([result(LONG)]))
    assert kept == result(shorten_result(LONG, MAX_WHOLE_CHARS))
    assert "read_result" not in kept.content


def test_longest_text_is_cut_once(tmp_path: Path):
    """It is cut when it is stored, with one note."""
    texts = LongTexts(TextFiles(LocalObjects(tmp_path)), ANA)
    assert shown(texts, through_redis(texts, [pasted("x" * 300_000)])) == [
        shorten("x" * 300_000, MAX_TEXT_CHARS)
    ]


def test_long_argument_of_a_call_is_cut():
    """A text at any depth of the arguments is cut, so a model's output cannot fill Redis."""
    call = ToolCall("save", {"a": [{"b": LONG}], "n": 1}, "1")
    (kept,) = through_redis(LongTexts(None, ANA), [Message(Role.ASSISTANT, tool_calls=(call,))])
    assert kept.tool_calls[0].parameters == {"a": [{"b": shorten(LONG, MAX_CUT_CHARS)}], "n": 1}


@given(
    st.text(st.characters(exclude_categories=()), min_size=1, max_size=60),
    st.integers(0, 2 * MAX_WHOLE_CHARS),
)
def test_any_text_is_read_back_whole(
    tmp_path_factory: pytest.TempPathFactory, piece: str, length: int
):
    """It holds for any length and any characters."""
    texts = LongTexts(TextFiles(LocalObjects(tmp_path_factory.getbasetemp() / "long")), ANA)
    text = (piece * (length // len(piece) + 1))[:length]
    kept = through_redis(texts, [pasted(text)])
    assert shown(texts, kept) == [text]
    assert len(kept[0].content) <= MAX_WHOLE_CHARS


@given(st.text(), st.integers(40, 200))
def test_cut_text_respects_the_limit(text: str, most: int):
    """The limit includes its note, so cutting again changes nothing."""
    assert len(shorten(text, most)) <= most
    assert shorten(shorten(text, most), most) == shorten(text, most)
