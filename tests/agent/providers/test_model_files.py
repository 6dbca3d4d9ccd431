"""Files for models: what is too large is never read, and all requests together have little of it in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from sayso.agent.messages import Message, Role
from sayso.agent.providers.files import MAX_BYTES_AT_ONCE, Binary, FileReading
from sayso.channels.types import Media

PDF = "application/pdf"


class Store:
    """Files by their reference, which is their size, and what was read."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def load(self, media: Media) -> bytes:
        """A file of the size that its reference says."""
        self.read.append(int(media.ref))
        return b"%PDF-".ljust(int(media.ref), b"x")


def files(store: Store, size: int = 1000) -> FileReading:
    """What reads files for a model that takes PDF, up to so many bytes."""
    return FileReading(store.load, [PDF], size, size)


def sent(*sizes: int, mime_type: str = PDF) -> list[Message]:
    """A person's message with files of these sizes."""
    media = tuple(Media(str(size), mime_type, "f", size, stored=True) for size in sizes)
    return [Message(Role.USER, "look", media=media)]


def texts(shown: Sequence[object]) -> list[str]:
    """What the model is told of the files that it is not shown."""
    return [file for each in shown for file in each.files if isinstance(file, str)]  # type: ignore[attr-defined]


def test_file_that_cannot_be_shown_is_not_read():
    """Its size is known: forty of them at once would be in memory for nothing."""
    store = Store()
    (shown,) = asyncio.run(files(store).read(sent(5000, 900, 200)))
    assert store.read == [900]
    assert [type(file) for file in shown.files] == [str, Binary, str]
    assert "5000 bytes, more than can be shown" in texts([shown])[0]
    assert "no room for it beside newer files" in texts([shown])[1]


def test_large_text_is_cut_and_its_length_told():
    """It may be larger than any other file: only its beginning is decoded at once."""
    text = "\N{GRINNING FACE}" * 300_000
    reads = FileReading(lambda _: text.encode(), [], 1000, 1000)
    assert (
        "its first 20000 of 300000 characters"
        in texts(asyncio.run(reads.read(sent(1_200_000, mime_type="text/plain"))))[0]
    )


def test_requests_wait_for_each_others_files():
    """All files of a worker's requests together stay below the limit, and who came first goes first."""
    store, half, held, most, order = Store(), MAX_BYTES_AT_ONCE // 2, 0, 0, list[int]()

    async def request(number: int, size: int) -> None:
        nonlocal held, most
        async with files(store, MAX_BYTES_AT_ONCE).holding(sent(size)):
            held += size
            most = max(most, held)
            order.append(number)
            for _ in range(3):
                await asyncio.sleep(0)
            held -= size

    sizes = [half, half, MAX_BYTES_AT_ONCE, half, 10]

    async def all_at_once() -> None:
        await asyncio.gather(*(request(number, size) for number, size in enumerate(sizes)))

    asyncio.run(all_at_once())
    assert (most <= MAX_BYTES_AT_ONCE, order[2]) == (True, 2)
    assert sorted(order) == [0, 1, 2, 3, 4]


def test_request_that_is_given_up_leaves_its_room():
    """Also one that still waits."""
    store, whole = Store(), sent(MAX_BYTES_AT_ONCE)
    reads = files(store, MAX_BYTES_AT_ONCE)

    async def story() -> int:
        async with reads.holding(whole):
            waiting = asyncio.ensure_future(reads.holding(whole).__aenter__())
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        async with reads.holding(whole) as shown:
            return len(shown)

    assert asyncio.run(asyncio.wait_for(story(), 30)) == 1
