"""Provider: through whichever door it is asked, what comes out is an answer or a ProviderError, and in time."""

from __future__ import annotations

import asyncio
import threading

import pytest

from sayso.agent import Message, ProviderError, Role, ToolCall, UsageStats
from sayso.agent.providers.base import (
    MAX_REASON_CHARS,
    ProviderConfigurationError,
    ProviderRequest,
    acall,
    astream_call,
    reason,
)

REQUEST = ProviderRequest("m", "", (), timeout=5)
ITEMS = ("a", ToolCall("t", {}, "c"), "b", UsageStats(1, 2, 3))
DOORS = ("acomplete", "complete", "astream", "stream")


def provider(door, *items, error=None):
    """One with this door only: it says the items, then fails if it has an error."""

    class OneDoor:
        closed = False

        def give(self):
            try:
                yield from items
                if error:
                    raise error
            finally:
                OneDoor.closed = True

        def whole(self):
            parts = list(self.give())
            text = "".join(part for part in parts if isinstance(part, str))
            return Message(Role.ASSISTANT, text, tuple(p for p in parts if isinstance(p, ToolCall))), UsageStats(
                1, 2, 3
            )

    async def acomplete(self, **request):
        return self.whole()

    async def astream(self, **request):
        for item in self.give():
            yield item

    doors = {
        "acomplete": acomplete,
        "complete": lambda self, **request: self.whole(),
        "astream": astream,
        "stream": lambda self, **request: self.give(),
    }
    setattr(OneDoor, door, doors[door])
    return OneDoor()


def hear(asked, request=REQUEST):
    """The answer or its error, and what was heard."""
    heard = []

    async def on_text(piece):
        heard.append(piece)

    try:
        return asyncio.run(astream_call(asked, request, on_text)), heard
    except ProviderError as exc:
        return exc, heard


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KeyError("choices"), "KeyError: 'choices'"),
        (TimeoutError(), "TimeoutError"),
        (ValueError("no\nsecond line"), "ValueError: no"),
        (asyncio.CancelledError(), "Escaped"),
        (SystemExit(1), "Escaped: it raised SystemExit"),
    ],
)
def test_whatever_a_provider_raises_is_a_provider_error(door, error, said):
    """Its type and words, its cause kept; nothing of it ends the process."""
    with pytest.raises(ProviderError, match=said) as caught:
        asyncio.run(acall(provider(door, error=error), REQUEST))
    assert caught.value.__cause__ is not None
    assert said in str(hear(provider(door, error=error))[0])


@pytest.mark.parametrize("answer", [None, "text", (), (None, None), ("a", "b"), (Message(Role.ASSISTANT, None), None)])
def test_nonsense_is_named(answer):
    """A provider that forgets its usage is forgiven, any other answer is none."""

    class Nonsense:
        async def acomplete(self, **request):
            return answer

    with pytest.raises(ProviderError, match=r"return \(Message, UsageStats\)"):
        asyncio.run(acall(Nonsense(), REQUEST))


def test_usage_may_be_missing():
    """It counts as none."""

    class Uncounted:
        async def acomplete(self, **request):
            return Message(Role.ASSISTANT, "hi"), None

    assert asyncio.run(acall(Uncounted(), REQUEST)) == (Message(Role.ASSISTANT, "hi"), UsageStats())


@pytest.mark.parametrize("item", [None, 5, b"a"])
@pytest.mark.parametrize("door", ["astream", "stream"])
def test_nonsense_in_a_stream_is_named(door, item):
    """It neither ends the answer nor vanishes from it."""
    error, heard = hear(provider(door, "a", item, "b"))
    assert ("yield text" in str(error), heard) == (True, ["a"])
    with pytest.raises(ProviderError, match="yield text"):
        asyncio.run(acall(provider(door, "a", item, "b"), REQUEST))


def test_no_door_is_no_provider():
    """Asking again will not help."""
    for asked in (acall(object(), REQUEST), astream_call(object(), REQUEST, print)):
        with pytest.raises(ProviderConfigurationError, match="is no provider"):
            asyncio.run(asked)


@pytest.mark.parametrize("door", ["astream", "stream"])
def test_a_stream_that_hangs_is_late(door):
    """However much it said before: the timeout limits each silence."""
    release = threading.Event()

    class Hanging:
        pass

    def stream(self, **request):
        yield "a"
        release.wait()

    async def astream(self, **request):
        yield "a"
        await asyncio.Event().wait()

    setattr(Hanging, door, {"stream": stream, "astream": astream}[door])
    error, heard = hear(Hanging(), ProviderRequest("m", "", (), timeout=0.05))
    release.set()
    assert (str(error), heard, error.retryable) == ("no answer within 0.05 seconds", ["a"], True)


@pytest.mark.parametrize("door", ["astream", "stream"])
def test_what_was_heard_of_a_broken_answer_is_void(door):
    """Who listens is told to begin anew, if there was a word; asking again may help as it does unstreamed."""

    class Listener:
        def __init__(self):
            self.heard = []

        async def __call__(self, text):
            self.heard.append(text)

        def anew(self):
            self.heard.append("anew")

    for items, heard in (("ab", ["a", "b", "anew"]), ((ITEMS[1],), [])):
        listener = Listener()
        with pytest.raises(ProviderError) as raised:
            asyncio.run(astream_call(provider(door, *items, error=ProviderError("cut")), REQUEST, listener))
        assert (listener.heard, raised.value.retryable) == (heard, True)


@pytest.mark.parametrize("door", DOORS)
def test_every_door_gives_the_same_answer(door):
    """Streamed or not, heard or not."""
    answer = (Message(Role.ASSISTANT, "ab", (ITEMS[1],)), UsageStats(1, 2, 3))
    assert asyncio.run(acall(provider(door, *ITEMS), REQUEST)) == answer
    streams = door in ("astream", "stream")
    assert hear(provider(door, *ITEMS)) == (answer, ["a", "b"] if streams else ["ab"])


@pytest.mark.parametrize("door", DOORS)
def test_what_the_listener_raises_is_raised(door):
    """It is no failure of the provider's, whose stream is closed."""
    asked = provider(door, *ITEMS)

    async def on_text(piece):
        raise TimeoutError(piece)

    with pytest.raises(TimeoutError, match="a"):
        asyncio.run(astream_call(asked, REQUEST, on_text))
    assert door == "stream" or type(asked).closed


def test_cancelling_stops_the_provider():
    """`/stop` ends the run, and no error of the provider's hides it."""
    stopped = []

    class Hanging:
        async def astream(self, **request):
            yield "a"
            try:
                await asyncio.Event().wait()
            finally:
                stopped.append(True)

    async def scene():
        heard = asyncio.Event()

        async def on_text(piece):
            heard.set()

        task = asyncio.create_task(astream_call(Hanging(), REQUEST, on_text))
        await heard.wait()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scene())
    assert stopped == [True]


@pytest.mark.parametrize(
    "words",
    [
        "https://x.test/v1?key=s3cret&a=b",
        "{'Authorization': 'Bearer s3cret'}",
        '{"api_key": "s3cret"}',
        "bad key sk-s3cret-s3cret",
        "token = s3cret",
    ],
)
def test_no_key_is_repeated(words):
    """Vendors' errors carry URLs and headers, and ours are shown to people."""
    assert "s3cret" not in reason(ValueError(words))


def test_a_reason_is_one_short_line():
    """Also of an error that cannot say what it is."""

    class Mute(Exception):
        def __str__(self):
            raise RuntimeError

    assert reason(Mute()) == "Mute"
    assert len(reason(ValueError("x" * 9999 + "\nmore"))) == len("ValueError: ") + MAX_REASON_CHARS


@pytest.mark.parametrize("door", ["acomplete", "complete"])
def test_a_text_only_stream_beside_a_whole_answer_loses_no_tool_call(door):
    """Without `astream`, a run that is heard live asks `acomplete`, then `complete` (seed: Fallback Behavior)."""
    answer = Message(Role.ASSISTANT, "thinking", (ToolCall("stock", {}, "1"),)), UsageStats()

    class TextOnly:
        def stream(self, **request):
            yield "thinking"

    async def acomplete(self, **request):
        return answer

    def complete(self, **request):
        return answer

    setattr(TextOnly, door, {"acomplete": acomplete, "complete": complete}[door])
    assert hear(TextOnly()) == (answer, ["thinking"])
