"""Provider calls: every provider method leads to an answer or a ProviderError, within the time limit."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass

import pytest

from sayso.agent import Message, ProviderError, Role, ToolCall, UsageStats
from sayso.agent.providers.base import (
    MAX_REASON_CHARS,
    ProviderConfigurationError,
    ProviderRequest,
    acall,
    astream_call,
    hide_secrets,
    reason,
)
from tests.clocks import StoppedClock

REQUEST = ProviderRequest("m", "", (), timeout=5)
ITEMS = ("a", ToolCall("t", {}, "c"), "b", UsageStats(1, 2, 3))
DOORS = ("acomplete", "complete", "astream", "stream")


def provider(door, *items, error=None):
    """Return a provider with this method only; it gives the items, then raises its error."""

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
            return Message(
                Role.ASSISTANT, text, tuple(p for p in parts if isinstance(p, ToolCall))
            ), UsageStats(1, 2, 3)

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
    """Return the answer or its error, and the streamed text."""
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
def test_any_exception_of_a_provider_is_a_provider_error(door, error, said):
    """The error has the type and text of its cause; even SystemExit does not end the process."""
    with pytest.raises(ProviderError, match=said) as caught:
        asyncio.run(acall(provider(door, error=error), REQUEST))
    assert caught.value.__cause__ is not None
    assert said in str(hear(provider(door, error=error))[0])


@pytest.mark.parametrize(
    "answer", [None, "text", (), (None, None), ("a", "b"), (Message(Role.ASSISTANT, None), None)]
)
def test_invalid_answer_is_a_provider_error(answer):
    """A missing usage is accepted; any other deviation is not."""

    class Nonsense:
        async def acomplete(self, **request):
            return answer

    with pytest.raises(ProviderError, match=r"return \(Message, UsageStats\)"):
        asyncio.run(acall(Nonsense(), REQUEST))


def test_missing_usage_is_accepted():
    """It counts as zero."""

    class Uncounted:
        async def acomplete(self, **request):
            return Message(Role.ASSISTANT, "hi"), None

    assert asyncio.run(acall(Uncounted(), REQUEST)) == (Message(Role.ASSISTANT, "hi"), UsageStats())


@pytest.mark.parametrize("item", [None, 5, b"a"])
@pytest.mark.parametrize("door", ["astream", "stream"])
def test_invalid_stream_item_is_an_error(door, item):
    """It neither ends the answer normally nor is dropped."""
    error, heard = hear(provider(door, "a", item, "b"))
    assert ("yield text" in str(error), heard) == (True, ["a"])
    with pytest.raises(ProviderError, match="yield text"):
        asyncio.run(acall(provider(door, "a", item, "b"), REQUEST))


def test_object_without_provider_methods_is_refused():
    """A retry cannot help."""
    for asked in (acall(object(), REQUEST), astream_call(object(), REQUEST, print)):
        with pytest.raises(ProviderConfigurationError, match="is no provider"):
            asyncio.run(asked)


class Slow:
    """A provider that waits until it is cancelled, and then cleans up; `error` is raised meanwhile."""

    def __init__(self, error=None):
        self.error, self.log = error, []

    async def acomplete(self, **request):
        try:
            await asyncio.Event().wait()
        finally:
            self.log.append("told")
            await asyncio.sleep(0)
            self.log.append("cleaned up")
            if self.error:
                raise self.error


@pytest.mark.parametrize("error", [None, LookupError("broken"), ProviderError("its own")])
def test_provider_over_the_time_limit_is_cancelled_and_has_ended(error):
    """It can clean up, even with an await. An error in the cleanup does not hide the timeout."""
    slow = Slow(error)
    with pytest.raises(ProviderError, match=r"no answer within 0\.01 seconds") as caught:
        asyncio.run(acall(slow, ProviderRequest("m", "", (), timeout=0.01)))
    assert slow.log == ["told", "cleaned up"]
    assert error in (None, caught.value.__cause__)


def test_provider_that_does_not_wait_is_in_time():
    """This holds even for a limit of zero, which ends every provider that waits."""
    request = ProviderRequest("m", "", (), timeout=0)
    assert asyncio.run(acall(provider("acomplete", "at once"), request))[0].content == "at once"
    with pytest.raises(ProviderError, match="no answer within 0 seconds"):
        asyncio.run(acall(Slow(), request))


def test_cancelling_the_caller_cancels_the_provider():
    """The caller ends with CancelledError once the provider has cleaned up."""
    slow = Slow()

    async def cancel():
        task = asyncio.create_task(acall(slow, REQUEST))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert slow.log == ["told", "cleaned up"]


@pytest.mark.parametrize("door", ["astream", "stream"])
def test_hanging_stream_times_out(door):
    """The timeout limits each pause, whatever was yielded before."""
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
    heard = []

    async def listen():
        async def on_text(piece):
            heard.append(piece)
            asyncio.get_running_loop().start()

        return await astream_call(Hanging(), ProviderRequest("m", "", (), timeout=0.05), on_text)

    with (
        asyncio.Runner(loop_factory=StoppedClock) as runner,
        pytest.raises(ProviderError) as caught,
    ):
        runner.run(listen())
    release.set()
    assert (str(caught.value), heard, caught.value.retryable) == (
        "no answer within 0.05 seconds",
        ["a"],
        True,
    )


@pytest.mark.parametrize("door", ["astream", "stream"])
def test_text_of_a_broken_stream_is_withdrawn(door):
    """A listener that received text is told to restart; the error is retryable as without streaming."""

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
            asyncio.run(
                astream_call(provider(door, *items, error=ProviderError("cut")), REQUEST, listener)
            )
        assert (listener.heard, raised.value.retryable) == (heard, True)


@pytest.mark.parametrize("door", DOORS)
def test_every_method_gives_the_same_answer(door):
    """Streaming and listening make no difference."""
    answer = (Message(Role.ASSISTANT, "ab", (ITEMS[1],)), UsageStats(1, 2, 3))
    assert asyncio.run(acall(provider(door, *ITEMS), REQUEST)) == answer
    streams = door in ("astream", "stream")
    assert hear(provider(door, *ITEMS)) == (answer, ["a", "b"] if streams else ["ab"])


@pytest.mark.parametrize("door", DOORS)
def test_exception_of_the_listener_is_raised(door):
    """It is no failure of the provider, and the provider's stream is closed."""
    asked = provider(door, *ITEMS)

    async def on_text(piece):
        raise TimeoutError(piece)

    with pytest.raises(TimeoutError, match="a"):
        asyncio.run(astream_call(asked, REQUEST, on_text))
    assert door == "stream" or type(asked).closed


def test_cancellation_stops_the_provider():
    """`/stop` ends the run, and no provider error hides the cancellation."""
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
def test_reason_contains_no_key(words):
    """Vendors' errors contain URLs and headers, and users see the reason."""
    assert "s3cret" not in reason(ValueError(words))


def test_reason_is_one_short_line():
    """It also works for an error whose __str__ raises."""

    class Mute(Exception):
        def __str__(self):
            raise RuntimeError

    assert reason(Mute()) == "Mute"
    assert len(reason(ValueError("x" * 9999 + "\nmore"))) == len("ValueError: ") + MAX_REASON_CHARS


@pytest.mark.parametrize("door", ["acomplete", "complete"])
def test_text_only_stream_does_not_lose_tool_calls(door):
    """Without `astream`, a streamed run calls `acomplete`, then `complete` (seed: Fallback Behavior)."""
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


def test_secret_at_the_end_of_a_reason_is_hidden():
    """A long error is cut only after its secrets are hidden."""
    line = "x" * (MAX_REASON_CHARS - 6) + " sk-abcdefghijkl"
    assert "sk-" not in reason(ValueError(line))
    assert len(hide_secrets(line)) <= MAX_REASON_CHARS


def test_object_that_is_no_provider_is_named_by_its_class():
    """Its own text may hold a key."""

    @dataclass
    class Settings:
        api_key: str

    with pytest.raises(ProviderConfigurationError) as raised:
        asyncio.run(acall(Settings("sk-123456789"), REQUEST))
    assert "'Settings' is no provider" in str(raised.value)
    assert "sk-" not in str(raised.value)


@pytest.mark.parametrize("text", ["I should pay it.</think>", "I should pay it.</think>\nDone"])
def test_tool_call_after_reasoning_without_an_opening_tag_is_kept(text):
    """The Restart that drops the reasoning drops neither the call nor the usage."""
    call = ToolCall("pay", {"bill": "b1"}, "c1")
    usage = UsageStats(1, 2, 3)
    (answer, counted), _ = hear(provider("astream", call, text, call, usage))
    assert answer.tool_calls == (call, call)
    assert "pay it" not in answer.content
    assert counted == usage
