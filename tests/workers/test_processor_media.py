"""Inbound files on their way to the agent: fetched, stored, and never a reason to leave a turn unanswered."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import pytest

from sayso.channels.base import Channel, FetchError, Unreachable
from sayso.channels.media_store import LocalMediaStore, TooLarge
from sayso.channels.types import Conversation, Delivery, Media, Receipt, Reply, Turn
from sayso.pending.turn_changes import TurnChange, TurnReply
from sayso.pending.turns import QueuedTurn
from sayso.testing.platforms.webhooks import JPEG
from sayso.workers import sender, turn_fetcher
from sayso.workers.turn_fetcher import TurnFetcher
from tests.contracts.rigs import CHAT, ENGLISH, Rig, make_processor, make_sender, turn
from tests.workers.fakes import Bot, FakeAgent, FakeChannel

SECRET_URL = "https://files.example/secret-link"
PHOTO = Media(SECRET_URL, "image/jpeg", "beach.jpg")
#: The platform's claims on size and type, which are wrong.
MISLABELLED = Media(SECRET_URL, "application/pdf", "bill.pdf", size=7)


class FileChannel(FakeChannel):
    """A channel with inbound files, which `get` returns."""

    def __init__(self, get: Callable[[Media], bytes]) -> None:
        super().__init__()
        self.get = get
        self.asked: list[Media] = []

    async def fetch(self, media: Media, file: BinaryIO) -> None:
        """Write the bytes, or raise the planned error."""
        self.asked.append(media)
        file.write(self.get(media))


class Looking(FakeAgent):
    """An agent that only looks at the files of a turn."""

    def __init__(self) -> None:
        self.seen: tuple[Media, ...] = ()

    async def answer(
        self,
        queued: QueuedTurn,
        lease: object,
        stream: object = None,
        steps: object = None,
    ) -> TurnChange:
        """Answer with their number."""
        self.seen = queued.turn.media
        return TurnChange(replies=(TurnReply(Reply(f"{len(self.seen)} files")),))


class Giving(Looking):
    """An agent that answers with a file."""

    async def answer(
        self,
        queued: QueuedTurn,
        lease: object,
        stream: object = None,
        steps: object = None,
    ) -> TurnChange:
        """Give the photo."""
        return TurnChange(replies=(TurnReply(Reply(media=replace(PHOTO, stored=True))),))


class Stuck(FakeChannel):
    """A platform that takes connections and never answers. `full` is set once it holds all places that it can get."""

    def __init__(self) -> None:
        super().__init__()
        self.sends = self.fetches = 0
        self.full = asyncio.Event()

    async def send(self, delivery: Delivery) -> Receipt:
        """Wait for ever."""
        self.sends += 1
        return await self._hang()

    async def fetch(self, media: Media, file: BinaryIO) -> None:
        """Wait for ever."""
        self.fetches += 1
        await self._hang()

    async def _hang(self) -> Receipt:
        if (self.sends, self.fetches) == (
            sender.MAX_FILES_SENT,
            turn_fetcher.MAX_FILES_OF_PLATFORM,
        ):
            self.full.set()
        await asyncio.Event().wait()
        raise AssertionError


class Room:
    """One conversation in memory whose channel has files, with a real media store."""

    def __init__(self, folder: Path, channel: FakeChannel, **options) -> None:
        self.rig, self.channel, self.agent = Rig(), channel, Looking()
        self.store = LocalMediaStore(folder, keys=["k"], public_url="https://bots.example.com")
        channels: dict[str, Channel] = {"chat": channel}
        settings = {"fetcher": TurnFetcher(self.store), **options}
        self.processor = make_processor(
            self.rig.mailbox,
            make_sender(self.rig.outbox, channels),
            channels,
            {"chat": self.agent},
            **settings,
        )

    def hear(self, *media: Media) -> tuple[Media, ...]:
        """Process a turn with these files; return the files that the agent got."""
        self.rig.accept(replace(turn("look"), media=media))
        asyncio.run(self.processor.run(CHAT.id))
        return self.agent.seen


def failing(error: Exception) -> Callable[[Media], bytes]:
    """Return a function that fails on every file."""

    def get(_media: Media) -> bytes:
        raise error

    return get


@pytest.mark.parametrize(
    "error",
    [
        FetchError("the file's server answered 404"),
        Unreachable("down"),
        TooLarge(f"{SECRET_URL} is too large"),
        TimeoutError(),
        OSError(f"no space for {SECRET_URL}"),
        RuntimeError(f"a bug at {SECRET_URL}"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_turn_with_a_missing_file_is_answered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: Exception
):
    """The agent gets the platform's name for it, without the claimed size. No log names the file."""
    caplog.set_level(logging.DEBUG)
    room = Room(tmp_path, FileChannel(failing(error)))
    assert room.hear(MISLABELLED) == (replace(MISLABELLED, size=0),)
    assert room.channel.texts == ["1 files"]
    assert "media.not_fetched" in caplog.text
    assert not [
        word
        for word in (SECRET_URL, "bill.pdf")
        if word in str([vars(record) for record in caplog.records])
    ]


def test_turn_with_a_file_too_large_for_the_store_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The limit of the store causes no crash."""
    monkeypatch.setattr("sayso.channels.media_store.MAX_FILE_BYTES", 100)
    room = Room(tmp_path, FileChannel(lambda _: JPEG))
    assert (room.hear(PHOTO), room.channel.texts) == ((PHOTO,), ["1 files"])


def test_hanging_download_ends_before_the_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An adapter that never returns costs the file, not the answer."""
    monkeypatch.setattr(turn_fetcher, "FETCH_SECONDS", 0.02)

    class Hanging(FakeChannel):
        async def fetch(self, media: Media, file: BinaryIO) -> None:
            await asyncio.Event().wait()
            raise AssertionError

    room = Room(tmp_path, Hanging())
    assert (room.hear(*[PHOTO] * 9), room.channel.texts) == ((PHOTO,) * 9, ["9 files"])


def test_download_counts_as_time_of_the_turn(tmp_path: Path):
    """The time limit of the turn ends it with a notice."""

    class Hanging(FakeChannel):
        async def fetch(self, media: Media, file: BinaryIO) -> None:
            await asyncio.Event().wait()
            raise AssertionError

    room = Room(tmp_path, Hanging(), turn_timeout=0.02)
    room.hear(PHOTO)
    assert room.channel.texts == [ENGLISH.too_long()]


def test_caption_of_a_fetched_photo_confirms_nothing(tmp_path: Path):
    """A yes below a picture is no yes, with or without the picture's bytes."""
    bot = Bot(Rig(), "the house", lines=["A fine picture."])
    bot.channel = FileChannel(lambda _: JPEG)
    channels: dict[str, Channel] = {"chat": bot.channel}
    store = LocalMediaStore(tmp_path, keys=["k"], public_url="https://bots.example.com")
    bot.processor = make_processor(
        bot.rig.mailbox,
        make_sender(bot.rig.outbox, channels),
        channels,
        {"chat": bot.agent},
        fetcher=TurnFetcher(store),
    )
    bot.say("delete the house")
    bot.rig.accept(replace(turn("yes"), media=(PHOTO,)))
    assert "A fine picture." in bot.work()
    assert bot.deleted == []
    assert bot.channel.asked == [PHOTO]


def test_agent_gets_the_stored_file(tmp_path: Path):
    """It has the store's id, the type of the bytes, the true size and the sender's name."""
    room = Room(tmp_path, FileChannel(lambda _: JPEG))
    (seen,) = room.hear(MISLABELLED)
    assert room.store.read(seen.ref) == JPEG
    assert seen == Media(seen.ref, "image/jpeg", "bill.pdf", len(JPEG), stored=True)


@pytest.mark.parametrize(
    ("mime_type", "ending"), [("audio/ogg; codecs=opus", "ogg"), ("image/jpeg", "jpg")]
)
def test_file_without_a_name_gets_one_that_models_and_tools_use(
    tmp_path: Path, mime_type: str, ending: str
):
    """A voice note has none, and tools take files by name."""
    data = JPEG if ending == "jpg" else b"OggS voice"
    room = Room(tmp_path, FileChannel(lambda media: data))
    (seen,) = room.hear(Media(SECRET_URL, mime_type))
    assert seen.filename == f"{mime_type.partition('/')[0]}-{seen.ref[:8]}.{ending}"


def test_one_lost_file_does_not_cost_the_others(tmp_path: Path):
    """Each file is fetched by itself, and the order holds."""
    lost = Media("lost", "audio/ogg", size=9)

    def get(media: Media) -> bytes:
        if media == lost:
            raise FetchError("gone")
        return JPEG

    seen = Room(tmp_path, FileChannel(get)).hear(PHOTO, lost, PHOTO)
    assert [media.stored for media in seen] == [True, False, True]


def test_stored_file_is_not_downloaded(tmp_path: Path):
    """A file in the store needs no channel."""
    channel = FileChannel(failing(FetchError("asked")))
    stored = replace(PHOTO, ref="a" * 64, size=3, stored=True)
    assert (Room(tmp_path, channel).hear(stored), channel.asked) == ((stored,), [])


def test_files_of_one_turn_are_downloaded_in_parallel(tmp_path: Path):
    """Two downloads that wait for each other both finish."""

    class Meeting(FakeChannel):
        def __init__(self) -> None:
            super().__init__()
            self.waiting = 0
            self.together = asyncio.Event()

        async def fetch(self, media: Media, file: BinaryIO) -> None:
            self.waiting += 1
            if self.waiting == 2:
                self.together.set()
            await self.together.wait()
            file.write(JPEG)

    seen = Room(tmp_path, Meeting()).hear(PHOTO, PHOTO)
    assert [media.stored for media in seen] == [True, True]


def test_number_of_parallel_downloads_is_bounded(tmp_path: Path):
    """An album comes a few files at a time, to bound the memory."""

    class Counting(FakeChannel):
        now = most = 0
        full = asyncio.Event()

        async def fetch(self, media: Media, file: BinaryIO) -> None:
            self.now += 1
            self.most = max(self.most, self.now)
            if self.now == turn_fetcher.MAX_FILES_OF_TURN:
                self.full.set()
            await self.full.wait()  # files are opened in threads, so they come one after the other
            for _ in range(5):
                await asyncio.sleep(0)
            self.now -= 1
            file.write(JPEG)

    channel = Counting()
    seen = Room(tmp_path, channel).hear(*[PHOTO] * 11)
    assert (all(media.stored for media in seen), channel.most) == (
        True,
        turn_fetcher.MAX_FILES_OF_TURN,
    )


def test_number_of_files_sent_at_a_time_is_bounded(tmp_path: Path):
    """Each file is in memory while it is sent, and a hundred conversations may have one."""

    class Sending(FakeChannel):
        now = most = 0
        full = asyncio.Event()

        async def send(self, delivery: Delivery) -> Receipt:
            self.now += 1
            self.most = max(self.most, self.now if delivery.reply.media else 0)
            if self.now == sender.MAX_FILES_SENT:
                self.full.set()
            # The first ones wait for each other, however busy the machine is.
            await self.full.wait()
            for _ in range(50):
                await asyncio.sleep(0)
            self.now -= 1
            return await super().send(delivery)

    room = Room(tmp_path, channel := Sending())
    room.processor.turns.agents["chat"] = Giving()
    chats = [Conversation("chat", f"room{at}") for at in range(3 * sender.MAX_FILES_SENT)]
    for at, chat in enumerate(chats):
        room.rig.accept(replace(turn("give", event=f"g{at}"), conversation=chat))

    async def all_at_once() -> None:
        await asyncio.gather(*(room.processor.run(chat.id) for chat in chats))

    asyncio.run(all_at_once())
    assert (len(channel.sent), channel.most) == (len(chats), sender.MAX_FILES_SENT)


def test_platform_that_hangs_delays_no_file_of_another(tmp_path: Path):
    """Its own files wait, in both directions. A photo of another platform comes in, and the answer goes out."""
    room = Room(tmp_path, working := FileChannel(lambda _: JPEG))
    room.processor.turns.channels["stuck"] = stuck = Stuck()
    room.processor.turns.agents.update(dict.fromkeys(("chat", "stuck"), Giving()))
    chats = [Conversation("stuck", f"{at}") for at in range(4 * sender.MAX_FILES_SENT)]
    for at, chat in enumerate(chats):
        files = (PHOTO,) if at % 2 else ()
        room.rig.accept(replace(turn("give", event=f"e{at}"), conversation=chat, media=files))
    room.rig.accept(replace(turn("give", event="mine"), media=(PHOTO,)))

    async def answer_beside_them() -> None:
        others = [asyncio.ensure_future(room.processor.run(chat.id)) for chat in chats]
        await stuck.full.wait()
        await asyncio.wait_for(room.processor.run(CHAT.id), 30)
        for other in others:
            other.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    asyncio.run(answer_beside_them())
    assert (len(working.asked), [delivery.reply.media.mime_type for delivery in working.sent]) == (
        1,
        ["image/jpeg"],
    )


def test_turn_whose_quote_fails_in_any_way_is_answered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """An adapter of a package may raise anything. Its message may hold a link, so no log has it."""
    caplog.set_level(logging.DEBUG)

    class Quoting(FakeChannel):
        async def quoted(self, _turn: Turn) -> str:
            raise RuntimeError(f"a bug at {SECRET_URL}")

    room = Room(tmp_path, Quoting())
    room.rig.accept(replace(turn("look"), replied_to="m1"))
    asyncio.run(room.processor.run(CHAT.id))
    assert room.channel.texts == ["0 files"]
    assert "quote.unknown" in caplog.text
    assert SECRET_URL not in str([vars(record) for record in caplog.records])


def test_without_a_store_no_file_is_downloaded(tmp_path: Path):
    """The bytes would have no place."""
    channel = FileChannel(lambda _: JPEG)
    assert (Room(tmp_path, channel, fetcher=TurnFetcher()).hear(PHOTO), channel.asked) == (
        (PHOTO,),
        [],
    )
