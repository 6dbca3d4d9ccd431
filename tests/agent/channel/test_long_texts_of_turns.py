"""Long texts in turns: what a long tool result leaves in Redis and in files, and how later turns read it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from sayso.agent import Message, Role, tool
from sayso.agent.channel.long_texts import FOLDER, TextFiles
from sayso.agent.config import DEFAULT_RESULT_TOKENS
from sayso.agent.run.long_results import (
    MAX_WHOLE_CHARS,
    digest_id,
    shorten_message,
    shorten_result,
)
from sayso.channels.markdown.convert import plain
from sayso.config.settings.loader import load_settings
from sayso.config.wiring.bootstrap import bootstrap
from sayso.infra.storage.objects import LocalObjects
from tests.contracts.rigs import ENGLISH, Rig
from tests.workers.story import Story, call

LONG = "0123456789" * 6_000
#: What the turn of the call reads of it.
FIRST = shorten_message(Message(Role.TOOL, LONG), DEFAULT_RESULT_TOKENS).content
#: What later turns read of it, and what a turn reads that continues when the file is missing.
PART = shorten_result(LONG, 1600, digest_id(LONG))
GONE = f"{PART} [the rest is not there any more, was 60000 characters]"


@tool(read_only=True)
def fetch() -> str:
    """Fetch a long text."""
    return LONG


@tool(requires_approval=True)
def export() -> str:
    """Fetch a long text after a yes."""
    return LONG


@tool(terminal=True)
def recite() -> str:
    """Fetch a long text for the user to read."""
    return LONG


def new_story(rig, tmp_path: Path, *lines) -> Story:
    """Return a story with tools that return long texts, and its text store in the folder `texts`."""
    story = Story(rig, list(lines) or [(call("fetch"),), "all done"])
    story.tools += [fetch, recite, export]
    story.texts = TextFiles(LocalObjects(tmp_path / "texts"))
    return story


def files(tmp_path: Path) -> list[Path]:
    """Return the files in the folder."""
    return [path for path in tmp_path.rglob("*") if path.is_file()]


def in_redis(client) -> dict[str, int]:
    """Return the bytes of values by kind of key."""
    sizes: dict[str, int] = {}
    for key in client.scan_iter("sayso:{*"):
        kind = key.split(":")[2]
        dump = {"string": client.get, "list": lambda name: "".join(client.lrange(name, 0, -1))}
        value = dump.get(client.type(key), lambda _: "")(key)
        sizes[kind] = sizes.get(kind, 0) + len(value.encode())
    return sizes


@pytest.fixture
def rig():
    """Return an empty rig."""
    return Rig()


def test_worker_that_takes_over_without_the_file_continues(rig, tmp_path):
    """The data folder is not shared: the model sees the beginning and a note, and the turn succeeds."""
    story = new_story(rig, tmp_path)
    story.hear()
    story.life.names = {"after model 1"}
    assert not story.work()
    shutil.rmtree(tmp_path / "texts")
    assert story.work_on() == "all done"
    assert story.model.seen[-1] == [GONE]


def test_answer_with_a_missing_file_is_cut_to_its_beginning(rig, tmp_path):
    """The user reads the note, so it is in no language."""
    story = new_story(rig, tmp_path, (call("recite"),))
    story.hear()
    story.life.names = {"before commit"}
    assert not story.work()
    shutil.rmtree(tmp_path / "texts")
    assert plain(story.work_on()) == LONG[:1000] + " […]"


def test_failing_disk_breaks_no_turn(rig, tmp_path):
    """The journal in Redis keeps the whole result, and the history keeps more of it than with a file."""
    story = new_story(rig, tmp_path)
    (tmp_path / "texts").write_text("no folder")
    assert story.killed_at("after model 1") == "all done"
    assert story.model.seen == [[], [FIRST], [FIRST]]
    story.hear("go on")
    story.model.lines = ["and on"]
    assert story.work_on() == "and on"
    assert story.model.seen[-1] == [shorten_result(LONG, MAX_WHOLE_CHARS)]


def test_worker_that_takes_over_sees_the_same_of_a_result(rig, tmp_path):
    """The text is identical although the journal holds little of it."""
    story = new_story(rig, tmp_path)
    assert story.killed_at("after model 1") == "all done"
    assert story.model.seen == [[], [FIRST], [FIRST]]
    assert len(files(tmp_path)) == 1


def test_later_turns_see_the_same_part_of_a_result(rig, tmp_path):
    """It is shortened once, at the end of its turn: so is the beginning of all later requests, file or not."""
    story = new_story(rig, tmp_path)
    for forget in (False, False, True):
        if forget:
            shutil.rmtree(tmp_path / "texts")
        story.hear("go on")
        story.work_on()
        story.model.lines = ["and on"]
    assert story.model.seen == [[], [FIRST], [PART], [PART]]


def test_reply_that_repeats_a_result_is_remembered_as_its_beginning(rig, tmp_path):
    """A terminal tool's result is the reply as well: it stands in the history once, and then as a part."""
    story = new_story(rig, tmp_path, (call("recite"),))
    story.hear()
    story.work_on()
    story.model.lines = ["and on"]
    story.hear("go on")
    story.work_on()
    assert story.model.seen[-1] == [PART]
    assert len(story.model.last_answer) == 1600


def test_long_result_after_a_yes_is_in_a_file_too(rig, tmp_path):
    """What the model reads of it is whole JSON, and stays the same."""
    story = new_story(rig, tmp_path, (call("export"),))
    story.hear()
    story.work_on()
    story.hear("yes")
    story.work_on()
    story.model.lines = ["and on"]
    for _ in range(2):
        story.hear("go on")
        story.work_on()
    (first,), (second,) = story.model.seen[-2:]
    assert first == second
    outcome = json.loads(first)
    assert outcome["outcome"] == "done"
    assert outcome["result"].startswith(LONG[:1000])
    assert "of 60000 characters are shown" in outcome["result"]
    assert len(first) < 2000
    assert LONG in files(tmp_path)[0].read_text()


def test_long_result_of_a_stopped_turn_is_in_a_file_too(rig, tmp_path):
    """The history of the turn refers to the file of its journal."""
    story = new_story(rig, tmp_path, (call("fetch"),), "all done")
    story.hear()
    story.life.names = {"after model 1"}
    assert not story.work()
    story.hear("/stop")
    story.work_on()
    story.model.lines = ["and on"]
    story.hear("go on")
    story.work_on()
    assert story.model.seen[-1] == [PART]


def test_redis_holds_little_of_a_long_result(redis_client, tmp_path):
    """Of 60,000 characters, about two kilobytes are in the journal during the turn, and in the history afterwards."""
    story = new_story(Rig(redis_client), tmp_path)
    story.hear()
    story.life.names = {"after model 1"}
    assert not story.work()
    assert 1600 < in_redis(redis_client)["journal"] < 2400
    story.work_on()
    sizes = in_redis(redis_client)
    assert "journal" not in sizes
    assert 1600 < sizes["history"] < 2400
    assert sum(sizes.values()) < 5000
    assert len(files(tmp_path)) == 1


def test_turn_with_short_texts_creates_no_file(rig, tmp_path):
    """It creates no folder either."""
    story = new_story(rig, tmp_path, (call("look", what="a"),), "all done")
    story.hear()
    assert story.work_on() == "all done"
    assert not list(tmp_path.iterdir())


def test_journal_limit_counts_texts_in_files(rig, tmp_path, monkeypatch):
    """Files do not bypass the limit on what one run may show its model, also after a crash."""
    monkeypatch.setattr("sayso.agent.channel.turn_journal.MAX_JOURNAL_CHARS", 62_000)
    story = new_story(
        rig, tmp_path, (call("fetch"),), (call("look", what="z" * 2000),), "never said"
    )
    assert story.killed_at("after model 1") == ENGLISH.too_many_steps()


def test_long_texts_are_not_reachable_by_media_links(redis_url, redis_client, tmp_path):
    """A wired worker stores them in their own folder, which the media store does not serve."""
    (tmp_path / "bot.yaml").write_text("tools: [./t.py]\nchannels:\n  chat: {platform: console}\n")
    (tmp_path / "t.py").write_text("")
    services = bootstrap(
        load_settings(tmp_path / "bot.yaml"), data=tmp_path / "data", redis_url=redis_url
    )
    ref = services.texts.put("a" * 20, LONG)
    assert [path.parent.parent for path in files(tmp_path / "data") if ref in path.name] == [
        tmp_path / "data" / FOLDER
    ]
    with pytest.raises(KeyError):
        services.media.read(ref)
