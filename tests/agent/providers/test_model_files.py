"""Files for models: a file that is too large is never read, and all requests together hold a bounded amount."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from sayso.agent.messages import Message, Role
from sayso.agent.providers.file_reading import MAX_BYTES_AT_ONCE, Binary, FileReading
from sayso.channels.types import Media

PDF = "application/pdf"


class Store:
    """A store whose references are the file sizes; it records what was read."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def load(self, media: Media) -> bytes:
        """Return a file of the size in its reference."""
        self.read.append(int(media.ref))
        return b"%PDF-".ljust(int(media.ref), b"x")


def files(store: Store, size: int = 1000) -> FileReading:
    """Return a reader for a model that accepts PDF files up to this size."""
    return FileReading(store.load, [PDF], size, size)


def sent(*sizes: int, mime_type: str = PDF) -> list[Message]:
    """Return a user message with files of these sizes."""
    media = tuple(Media(str(size), mime_type, "f", size, stored=True) for size in sizes)
    return [Message(Role.USER, "look", media=media)]


def texts(shown: Sequence[object]) -> list[str]:
    """Return the notes that replace files."""
    return [file for each in shown for file in each.files if isinstance(file, str)]  # type: ignore[attr-defined]


def test_file_that_cannot_be_shown_is_not_read():
    """The size is known beforehand, so reading it would only use memory."""
    store = Store()
    (shown,) = asyncio.run(files(store).read(sent(5000, 900, 200)))
    assert store.read == [900]
    assert [type(file) for file in shown.files] == [str, Binary, str]
    assert "5000 bytes, more than can be shown" in texts([shown])[0]
    assert "no room for it beside newer files" in texts([shown])[1]


def test_large_text_is_cut_with_its_length():
    """Only its beginning is decoded, so it may exceed the limit for other files."""
    text = "\N{GRINNING FACE}" * 300_000
    reads = FileReading(lambda _: text.encode(), [], 1000, 1000)
    assert (
        "its first 20000 characters of 1200000 bytes"
        in texts(asyncio.run(reads.read(sent(1_200_000, mime_type="text/plain"))))[0]
    )


def test_requests_wait_until_their_files_fit_in_memory():
    """The files of all requests of a worker stay below the limit, in the order of arrival."""
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


def test_cancelled_request_releases_its_memory():
    """A request that is still waiting can be cancelled too."""
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
