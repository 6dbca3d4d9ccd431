"""FallbackProvider: a request is answered while any provider works, and a failing provider is skipped for a while."""

from __future__ import annotations

import asyncio
import threading
from contextlib import aclosing

import pytest

from sayso.agent import Agent, Message, ProviderError, Role, ToolCall, UsageStats
from sayso.agent.providers.base import (
    ProviderConfigurationError,
    ProviderRequest,
    RateLimitedError,
    RequestRefusedError,
    Restart,
    acall,
    astream_call,
    join_items,
    name_of_model,
)
from sayso.agent.providers.fallback import FallbackProvider
from sayso.agent.providers.testing import LocalProvider

REQUEST = ProviderRequest("big", "", (Message(Role.USER, "hi"),), timeout=5)


class Vendor:
    """A provider that answers with its name or fails, and records the requested models."""

    def __init__(self, name, error=None, **traits):
        self.name, self.error, self.models = name, error, []
        self.__dict__.update(traits)

    async def acomplete(self, *, model, **request):
        """Return the name or raise the error."""
        self.models.append(model)
        if self.error:
            raise self.error
        return Message(Role.ASSISTANT, f"I am {self.name}"), UsageStats(1, 1, 2)


class Streaming:
    """A provider that yields these items, then raises its error."""

    def __init__(self, *items, error=None):
        self.items, self.error = items, error

    async def astream(self, **request):
        """Yield the items."""
        for item in self.items:
            yield item
        if self.error:
            raise self.error


class Clock:
    """A clock that the test sets."""

    now = 0.0

    def __call__(self):
        return self.now


def ask(provider, request=REQUEST):
    """Return the text of an answer."""
    return asyncio.run(acall(provider, request))[0].content


def hear(provider, request=REQUEST):
    """Return the answer of a stream or its error, and the streamed text."""
    heard = []

    async def on_text(piece):
        heard.append(piece)

    try:
        return asyncio.run(astream_call(provider, request, on_text)), heard
    except ProviderError as exc:
        return exc, heard


@pytest.mark.parametrize("begun", ["I ", ToolCall("pay", {}, "c1")])
def test_broken_stream_falls_back(begun):
    """Only the next provider's text and calls count, as in an answer that is not streamed."""
    (answer, usage), _ = hear(
        FallbackProvider([Streaming(begun, error=ProviderError("cut")), Vendor("b")])
    )
    assert (answer.content, answer.tool_calls, usage.provider) == ("I am b", (), "b")


def test_broken_stream_is_reported_as_restarted():
    """A live view replaces the draft with the next answer; a plain handler gets the answer on a new line."""
    provider = FallbackProvider([Streaming("I ", error=ProviderError("cut")), Vendor("b")])
    heard = []
    assert Agent([], provider).run("hello", stream_handler=heard.append).content == "I am b"
    assert heard == ["I ", "\nI am b"]

    async def chunks():
        return [chunk async for chunk in Agent([], provider).astream("hello")]

    first, second, result = asyncio.run(chunks())
    assert (first.content, first.restarts, second.content, second.restarts) == (
        "I ",
        False,
        "I am b",
        True,
    )
    assert result.content == "I am b"


def test_failure_of_all_streams_is_one_error():
    """The streamed text is dropped, and the error is retryable."""
    broken = [
        Streaming("I ", error=ProviderError("cut")),
        Streaming("We ", error=ProviderError("gone")),
    ]
    error, heard = hear(FallbackProvider(broken))
    assert ("cut" in str(error), "gone" in str(error), error.retryable, heard) == (
        True,
        True,
        True,
        ["I ", "We "],
    )


def test_stream_that_fails_before_its_first_text_falls_back():
    """The user sees no text twice."""
    (answer, usage), heard = hear(
        FallbackProvider([Streaming(error=KeyError("choices")), Vendor("b")])
    )
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
def test_every_failure_falls_back(error):
    """An error that a retry cannot help may not occur at another provider."""
    assert ask(FallbackProvider([Vendor("a", error), Vendor("b")])) == "I am b"


def test_each_provider_has_its_own_timeout():
    """A silent first provider would otherwise use up the time of all."""

    class Silent:
        async def acomplete(self, **request):
            await asyncio.Event().wait()

    request = ProviderRequest("big", "", (), timeout=0.02)
    provider = FallbackProvider([Silent(), Vendor("b")])
    assert ask(provider, request) == "I am b"
    assert hear(provider, request)[1] == ["I am b"]


def test_failure_of_all_providers_names_each():
    """One error has all reasons and the shortest wait, and no key."""
    down = [
        Vendor("a", RateLimitedError("api_key=s3cret", retry_after=9)),
        Vendor("b", ProviderError("x", retry_after=4)),
    ]
    with pytest.raises(ProviderError, match=r"\(a: api_key=\*\*\*; b: x\)") as caught:
        ask(FallbackProvider(down))
    assert (caught.value.retry_after, caught.value.retryable) == (4, True)


def test_failure_is_permanent_only_if_all_are():
    """Only then the user is told that a later attempt is of no use. If all have a rate limit, the error is one."""
    bad = Vendor("a", ProviderConfigurationError("no key"))
    limited = Vendor("b", RateLimitedError("slow down"))
    for vendors, retryable in (([bad, bad], False), ([bad, limited], True), ([limited, bad], True)):
        with pytest.raises(ProviderError) as caught:
            ask(FallbackProvider(vendors))
        assert caught.value.retryable is retryable
        assert caught.value.kind == ("busy" if retryable else "no_access")
    with pytest.raises(RateLimitedError):
        ask(FallbackProvider([limited, limited]))


def circuit(clock, **options):
    """Return a failing provider, a working one, and a fallback over both that opens after two failures."""
    down, up = Vendor("down", ProviderError("down")), Vendor("up")
    return down, up, FallbackProvider([down, up], 2, 60, clock=clock, **options)


def test_refused_request_does_not_open_the_circuit():
    """One user's broken file falls back, and later requests still use the first vendor."""
    first, second = Vendor("first", RequestRefusedError("broken file")), Vendor("second")
    provider = FallbackProvider([first, second], max_failures=1)
    for _ in range(3):
        assert ask(provider) == "I am second"
    first.error = None
    assert ask(provider) == "I am first"


def test_too_long_conversation_does_not_open_the_circuit():
    """A provider of one's own raises the error of its library, which is known only by its text."""
    first = Vendor("first", ValueError("maximum context length is 10 tokens"))
    provider = FallbackProvider([first, Vendor("second")], max_failures=1)
    assert ask(provider) == "I am second"
    first.error = None
    assert ask(provider) == "I am first"


def test_failing_provider_is_skipped_until_its_cooldown_ends():
    """Then one request tries it; if that fails, a new cooldown starts."""
    clock = Clock()
    down, _, provider = circuit(clock)
    for clock.now, asked in ((0, 1), (1, 2), (2, 2), (60.9, 2), (61, 3), (62, 3)):
        ask(provider)
        assert len(down.models) == asked


def test_answer_closes_the_circuit():
    """Only consecutive failures count."""
    clock = Clock()
    down, _, provider = circuit(clock)
    error = down.error
    for clock.now, down.error in (
        (0, error),
        (0, None),
        (0, error),
        (0, error),
        (0, error),
        (60, None),
        (60, None),
    ):
        ask(provider)
    assert len(down.models) == 6


def test_half_open_circuit_admits_one_request():
    """Many requests at once would overload the recovering provider, so the others use the next one."""
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


def test_cancelled_trial_is_released():
    """A cancelled run is no failure, and another request may try the provider."""
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


def test_trial_is_released_by_a_reader_that_leaves_at_the_restart():
    """The provider after a broken answer was admitted, and not asked yet."""
    clock = Clock()
    broken = Streaming("I ", error=ProviderError("cut"))
    second = Vendor("b", ProviderError("down"))
    provider = FallbackProvider([broken, second, Vendor("c")], 1, 60, clock=clock)
    hear(provider)
    clock.now, second.error = 60, None

    async def leave_at_the_restart():
        async with aclosing(provider.astream(**REQUEST.as_kwargs())) as stream:
            return [await anext(stream), await anext(stream)]

    assert asyncio.run(leave_at_the_restart()) == ["I ", Restart()]
    assert ask(provider) == "I am b"


def test_cancellation_is_no_failure():
    """After any number of cancelled runs, the provider is still called first."""
    provider = FallbackProvider([Streaming("I am a"), Vendor("b")], max_failures=1)

    async def leave():
        async for _ in provider.astream(**REQUEST.as_kwargs()):
            break

    asyncio.run(leave())
    assert hear(provider)[1] == ["I am a"]


def test_open_circuits_are_tried_if_all_are_open():
    """The provider whose cooldown ends first is called."""
    clock = Clock()
    first, second = Vendor("a", ProviderError("down")), Vendor("b", ProviderError("down"))
    provider = FallbackProvider([first, second], 1, 60, clock=clock)
    with pytest.raises(ProviderError):
        ask(provider)
    first.error = None
    assert ask(provider) == "I am a"


def test_skipped_provider_is_named_in_the_error():
    """The error gives the reason why it was not called."""
    _, up, provider = circuit(Clock())
    ask(provider)
    ask(provider)
    up.error = ProviderError("also down")
    with pytest.raises(ProviderError, match=r"\(up: also down; down: skipped for 60 s\)"):
        ask(provider)


def test_provider_that_stays_skipped_may_answer_later():
    """If all are skipped, one is called. The error does not forget the others."""
    clock = Clock()
    no_key, down = ProviderConfigurationError("no key"), ProviderError("down")
    provider = FallbackProvider([Vendor("a", no_key), Vendor("b", down)], 1, 60, clock=clock)
    with pytest.raises(ProviderError):
        ask(provider)
    with pytest.raises(ProviderError, match=r"\(a: no key; b: skipped for 60 s\)") as caught:
        ask(provider)
    assert caught.value.kind == "away"


def test_provider_that_another_request_tries_is_named_so():
    """Its cooldown has ended, so the error names no seconds."""
    clock = Clock()

    class Waking(Vendor):
        async def acomplete(self, **request):
            if clock.now == 60:
                with pytest.raises(ProviderError, match="a: skipped while another request tries"):
                    await provider.acomplete(**REQUEST.as_kwargs())
            return await super().acomplete(**request)

    down = ProviderError("down")
    provider = FallbackProvider([Waking("a", down), Vendor("b", down)], 1, 60, clock=clock)
    for clock.now in (0, 60):
        with pytest.raises(ProviderError, match=r"\(a: down; b: "):
            ask(provider)


def test_each_fallback_is_reported():
    """The callback receives the name and the error, the run's listener both names."""
    told, heard = [], []
    error = ProviderError("down")
    provider = FallbackProvider(
        [Vendor("a", error), Vendor("b", error), Vendor("c")], on_fallback=lambda *n: told.append(n)
    )
    listening = provider.with_listener(lambda *news: heard.append(news))
    assert listening.complete(**REQUEST.as_kwargs())[0].content == "I am c"
    assert (told, heard) == ([("a", error), ("b", error)], [("a", "b", error), ("b", "c", error)])


def test_failing_callback_does_not_lose_the_answer():
    """An exception of the callback is caught."""
    provider = FallbackProvider(
        [Vendor("a", ProviderError("down")), Vendor("b")], on_fallback=lambda name: None
    )
    assert ask(provider) == "I am b"
    told = []
    listening = provider.with_listener(lambda *names: told.append(names[:2]))
    assert (ask(listening), told) == ("I am b", [("a", "b")])


def test_each_provider_is_asked_for_a_model_it_knows():
    """The first gets the requested model, and any other its default model if it has one."""
    down = ProviderError("down")
    vendors = [
        Vendor("a", down, default_model="a-1"),
        Vendor("b", down, default_model="b-1"),
        Vendor("c"),
    ]
    ask(FallbackProvider(vendors))
    assert [vendor.models for vendor in vendors] == [["big"], ["b-1"], ["big"]]


@pytest.mark.parametrize("name", ["acomplete", "complete", "astream", "stream"])
def test_one_provider_method_is_enough_for_all_four(name):
    """A call through one method may be answered by another."""
    local = LocalProvider()

    class OneDoor:
        pass

    setattr(OneDoor, name, staticmethod(getattr(local, name)))
    provider, asked = FallbackProvider([OneDoor()]), REQUEST.as_kwargs()
    answer = (
        Message(Role.ASSISTANT, "[local provider: big] hi"),
        UsageStats(model="big", provider="local"),
    )
    assert provider.complete(**asked) == answer == asyncio.run(provider.acomplete(**asked))
    assert join_items(provider.stream(**asked)) == answer == hear(provider)[0]


def test_sync_stream_can_be_closed_early():
    """It works inside a running loop too, and the provider's stream is closed."""
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


def test_capabilities_are_those_of_all_providers():
    """They are queried each time, because they may change."""
    first, second = Vendor("a", supports_response_format=True), Vendor("b", supports_tools=False)
    provider = FallbackProvider([first, second])
    assert (provider.supports_response_format, provider.supports_tools) == (False, False)
    second.supports_response_format = second.supports_tools = True
    assert (provider.supports_response_format, provider.supports_tools) == (True, True)


def test_threads_share_one_circuit():
    """Runs in many threads count each failure once."""
    down, _, provider = circuit(Clock())
    threads = [
        threading.Thread(target=provider.complete, kwargs=REQUEST.as_kwargs()) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    asked = len(down.models)
    ask(provider)
    assert 2 <= asked == len(down.models)


@pytest.mark.parametrize(("providers", "most"), [([], 3), ([LocalProvider()], 0)])
def test_fallback_without_providers_is_refused(providers, most):
    """The error is raised at construction."""
    with pytest.raises(ValueError, match=r"calls no provider|needs providers"):
        FallbackProvider(providers, most)


@pytest.mark.parametrize(("default", "name"), [("m-1", "m-1"), ("", ""), (None, "")])
def test_provider_without_a_default_model_names_none(default, name):
    """Logs and the trace have no model then, and not one called "None"."""

    class Own:
        default_model = default

        async def acomplete(self, **_request: object) -> tuple[Message, UsageStats]:
            return Message(Role.ASSISTANT, "hi"), UsageStats()

    provider = FallbackProvider([Own()])
    assert name_of_model(provider, "") == name
    assert name_of_model(provider, "chosen") == "chosen"
