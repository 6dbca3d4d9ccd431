"""FallbackProvider: somebody answers while anybody can, and nobody who is down is asked for nothing."""

from __future__ import annotations

import asyncio
import threading

import pytest

from sayso.agent import Agent, Message, ProviderError, Role, ToolCall, UsageStats
from sayso.agent.providers.base import (
    ProviderConfigurationError,
    ProviderRequest,
    RateLimitedError,
    RequestRefusedError,
    acall,
    astream_call,
    join_items,
)
from sayso.agent.providers.fallback import FallbackProvider
from sayso.agent.providers.testing import LocalProvider

REQUEST = ProviderRequest("big", "", (Message(Role.USER, "hi"),), timeout=5)


class Vendor:
    """Says its name, or fails while it is down; counts how often it was asked, and for which models."""

    def __init__(self, name, error=None, **traits):
        self.name, self.error, self.models = name, error, []
        self.__dict__.update(traits)

    async def acomplete(self, *, model, **request):
        """Its name."""
        self.models.append(model)
        if self.error:
            raise self.error
        return Message(Role.ASSISTANT, f"I am {self.name}"), UsageStats(1, 1, 2)


class Streaming:
    """Yields what it is told, then fails while it is down."""

    def __init__(self, *items, error=None):
        self.items, self.error = items, error

    async def astream(self, **request):
        """The pieces."""
        for item in self.items:
            yield item
        if self.error:
            raise self.error


class Clock:
    """Time as the test says."""

    now = 0.0

    def __call__(self):
        return self.now


def ask(provider, request=REQUEST):
    """The text of an answer."""
    return asyncio.run(acall(provider, request))[0].content


def hear(provider, request=REQUEST):
    """The answer of a stream, or its error, and what was heard of it."""
    heard = []

    async def on_text(piece):
        heard.append(piece)

    try:
        return asyncio.run(astream_call(provider, request, on_text)), heard
    except ProviderError as exc:
        return exc, heard


@pytest.mark.parametrize("begun", ["I ", ToolCall("pay", {}, "c1")])
def test_a_stream_that_broke_off_falls_over(begun):
    """As an answer that is not streamed: only the next provider's words and calls count."""
    (answer, usage), _ = hear(FallbackProvider([Streaming(begun, error=ProviderError("cut")), Vendor("b")]))
    assert (answer.content, answer.tool_calls, usage.provider) == ("I am b", (), "b")


def test_a_stream_that_broke_off_is_told_to_be_void():
    """Whoever shows a draft shows the next answer alone; a plain handler gets it on a line of its own."""
    provider = FallbackProvider([Streaming("I ", error=ProviderError("cut")), Vendor("b")])
    heard = []
    assert Agent([], provider).run("hello", stream_handler=heard.append).content == "I am b"
    assert heard == ["I ", "\nI am b"]

    async def chunks():
        return [chunk async for chunk in Agent([], provider).astream("hello")]

    first, second, result = asyncio.run(chunks())
    assert (first.content, first.restarts, second.content, second.restarts) == ("I ", False, "I am b", True)
    assert result.content == "I am b"


def test_all_streams_that_broke_off_are_one_error():
    """Nothing is left of what was heard; asking again may help."""
    broken = [Streaming("I ", error=ProviderError("cut")), Streaming("We ", error=ProviderError("gone"))]
    error, heard = hear(FallbackProvider(broken))
    assert ("cut" in str(error), "gone" in str(error), error.retryable, heard) == (True, True, True, ["I ", "We "])


def test_a_stream_that_never_began_falls_over():
    """Nothing was heard, so nothing comes twice."""
    (answer, usage), heard = hear(FallbackProvider([Streaming(error=KeyError("choices")), Vendor("b")]))
    assert (answer.content, usage.provider, heard) == ("I am b", "b", ["I am b"])


@pytest.mark.parametrize(
    "error",
    [
        ProviderConfigurationError("no key"),
        ProviderError("bad key", retryable=False),
        RateLimitedError("slow down", retry_after=9),
        KeyError("choices"),
        asyncio.CancelledError(),
        SystemExit(1),
    ],
)
def test_every_failure_falls_over(error):
    """What asking the same one again would not help, asking another one does."""
    assert ask(FallbackProvider([Vendor("a", error), Vendor("b")])) == "I am b"


def test_one_that_is_silent_leaves_time_for_the_next():
    """The timeout is each one's own, or the first would use it up for all."""

    class Silent:
        async def acomplete(self, **request):
            await asyncio.Event().wait()

    request = ProviderRequest("big", "", (), timeout=0.02)
    provider = FallbackProvider([Silent(), Vendor("b")])
    assert ask(provider, request) == "I am b"
    assert hear(provider, request)[1] == ["I am b"]


def test_when_all_fail_each_is_named():
    """One error with the reasons, the shortest wait, and no key."""
    down = [
        Vendor("a", RateLimitedError("api_key=s3cret", retry_after=9)),
        Vendor("b", ProviderError("x", retry_after=4)),
    ]
    with pytest.raises(ProviderError, match=r"\(a: api_key=\*\*\*; b: x\)") as caught:
        ask(FallbackProvider(down))
    assert (caught.value.retry_after, caught.value.retryable) == (4, True)


def test_what_no_retry_can_help_is_not_retryable():
    """Only when it holds for each of them; rate limits of all are one."""
    bad = Vendor("a", ProviderConfigurationError("no key"))
    limited = Vendor("b", RateLimitedError("slow down"))
    for vendors, retryable in (([bad, bad], False), ([bad, limited], True)):
        with pytest.raises(ProviderError) as caught:
            ask(FallbackProvider(vendors))
        assert caught.value.retryable is retryable
    with pytest.raises(RateLimitedError):
        ask(FallbackProvider([limited, limited]))


def circuit(clock, **options):
    """A provider that is down, one that is not, and both behind one breaker each of two failures."""
    down, up = Vendor("down", ProviderError("down")), Vendor("up")
    return down, up, FallbackProvider([down, up], 2, 60, clock=clock, **options)


def test_refused_requests_take_nobody_elses_provider_away():
    """One person's broken file falls over, and says nothing of the vendor."""
    first, second = Vendor("first", RequestRefusedError("broken file")), Vendor("second")
    provider = FallbackProvider([first, second], max_failures=1)
    for _ in range(3):
        assert ask(provider) == "I am second"
    first.error = None
    assert ask(provider) == "I am first"


def test_one_that_keeps_failing_is_skipped_until_its_cooldown_ends():
    """Then one request tries it; when that fails, it rests again."""
    clock = Clock()
    down, _, provider = circuit(clock)
    for clock.now, asked in ((0, 1), (1, 2), (2, 2), (60.9, 2), (61, 3), (62, 3)):
        ask(provider)
        assert len(down.models) == asked


def test_an_answer_closes_the_circuit():
    """Failures count only in a row."""
    clock = Clock()
    down, _, provider = circuit(clock)
    error = down.error
    for clock.now, down.error in ((0, error), (0, None), (0, error), (0, error), (0, error), (60, None), (60, None)):
        ask(provider)
    assert len(down.models) == 6


def test_one_request_at_a_time_tries_a_provider_that_was_down():
    """A thousand at once would only bring it down again; the others are answered elsewhere."""
    clock, asked = Clock(), []

    class Waking:
        async def acomplete(self, **request):
            asked.append(1)
            await asyncio.sleep(0)
            raise ProviderError("down")

    provider = FallbackProvider([Waking(), Vendor("b")], 1, 60, clock=clock)
    ask(provider)
    clock.now = 60

    async def crowd():
        await asyncio.gather(*(acall(provider, REQUEST) for _ in range(20)))

    asyncio.run(crowd())
    assert len(asked) == 2


def test_a_cancelled_trial_is_given_back():
    """A run that was stopped says nothing about the provider, and holds its place for nobody."""
    clock = Clock()

    class Hanging(Vendor):
        async def acomplete(self, **request):
            if self.error == "hang":
                await asyncio.Event().wait()
            return await super().acomplete(**request)

    first = Hanging("a", ProviderError("down"))
    provider = FallbackProvider([first, Vendor("b")], 1, 60, clock=clock)
    ask(provider)
    clock.now, first.error = 60, "hang"

    async def stopped():
        task = asyncio.create_task(provider.acomplete(**REQUEST.as_kwargs()))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(stopped())
    first.error = None
    assert ask(provider) == "I am a"


def test_cancelling_never_counts_as_a_failure():
    """However many runs are stopped while they wait, the provider is asked first."""
    provider = FallbackProvider([Streaming("I am a"), Vendor("b")], max_failures=1)

    async def leave():
        async for _ in provider.astream(**REQUEST.as_kwargs()):
            break

    asyncio.run(leave())
    assert hear(provider)[1] == ["I am a"]


def test_when_all_are_skipped_the_first_to_be_back_is_asked():
    """Better than failing without asking anybody."""
    clock = Clock()
    first, second = Vendor("a", ProviderError("down")), Vendor("b", ProviderError("down"))
    provider = FallbackProvider([first, second], 1, 60, clock=clock)
    with pytest.raises(ProviderError):
        ask(provider)
    first.error = None
    assert ask(provider) == "I am a"


def test_a_skipped_one_is_named_among_those_that_failed():
    """Whoever reads the error sees why it was not even asked."""
    _, up, provider = circuit(Clock())
    ask(provider)
    ask(provider)
    up.error = ProviderError("also down")
    with pytest.raises(ProviderError, match=r"\(up: also down; down: skipped for 60 s\)"):
        ask(provider)


def test_who_listens_hears_of_each_switch():
    """The operator's callback the name and the error, the run both names."""
    told, heard = [], []
    error = ProviderError("down")
    provider = FallbackProvider(
        [Vendor("a", error), Vendor("b", error), Vendor("c")], on_fallback=lambda *n: told.append(n)
    )
    listening = provider.with_listener(lambda *news: heard.append(news))
    assert listening.complete(**REQUEST.as_kwargs())[0].content == "I am c"
    assert (told, heard) == ([("a", error), ("b", error)], [("a", "b", error), ("b", "c", error)])


def test_a_listener_that_fails_costs_no_answer():
    """It is somebody else's code."""
    provider = FallbackProvider([Vendor("a", ProviderError("down")), Vendor("b")], on_fallback=lambda name: None)
    assert ask(provider) == "I am b"


def test_each_vendor_is_asked_for_a_model_it_knows():
    """The request's goes to the first; any other has its own, if it has one."""
    down = ProviderError("down")
    vendors = [Vendor("a", down, default_model="a-1"), Vendor("b", down, default_model="b-1"), Vendor("c")]
    ask(FallbackProvider(vendors))
    assert [vendor.models for vendor in vendors] == [["big"], ["b-1"], ["big"]]


@pytest.mark.parametrize("name", ["acomplete", "complete", "astream", "stream"])
def test_any_one_method_is_enough_for_all_four(name):
    """What is asked through one door may be answered through another."""
    local = LocalProvider()

    class OneDoor:
        pass

    setattr(OneDoor, name, staticmethod(getattr(local, name)))
    provider, asked = FallbackProvider([OneDoor()]), REQUEST.as_kwargs()
    answer = (Message(Role.ASSISTANT, "[local provider: big] hi"), UsageStats(model="big", provider="local"))
    assert provider.complete(**asked) == answer == asyncio.run(provider.acomplete(**asked))
    assert join_items(provider.stream(**asked)) == answer == hear(provider)[0]


def test_a_stream_for_sync_code_can_be_left():
    """Also inside a running loop; what it held is closed."""
    closed = []

    class Held:
        async def astream(self, **request):
            try:
                while True:
                    yield "x"
            finally:
                closed.append(True)

    async def inside():
        pieces = FallbackProvider([Held()]).stream(**REQUEST.as_kwargs())
        assert next(pieces) == "x"
        pieces.close()

    asyncio.run(inside())
    assert closed == [True]


def test_it_can_do_what_all_can():
    """Whether it can is asked of them each time, as it may change."""
    first, second = Vendor("a", supports_response_format=True), Vendor("b", supports_tools=False)
    provider = FallbackProvider([first, second])
    assert (provider.supports_response_format, provider.supports_tools) == (False, False)
    second.supports_response_format = second.supports_tools = True
    assert (provider.supports_response_format, provider.supports_tools) == (True, True)


def test_threads_share_one_circuit():
    """Sync runs in many threads count each failure once."""
    down, _, provider = circuit(Clock())
    threads = [threading.Thread(target=provider.complete, kwargs=REQUEST.as_kwargs()) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    asked = len(down.models)
    ask(provider)
    assert 2 <= asked == len(down.models)


@pytest.mark.parametrize(("providers", "most"), [([], 3), ([LocalProvider()], 0)])
def test_nobody_to_ask_is_refused(providers, most):
    """When it is made, not when it is needed."""
    with pytest.raises(ValueError, match=r"calls no provider|needs providers"):
        FallbackProvider(providers, most)
