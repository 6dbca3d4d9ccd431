"""Reasoning in the text of an answer: no person reads it, and text about its tags stays."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from sayso.agent import Agent, AgentConfig, Message, Role, ToolCall, UsageStats, tool
from sayso.agent.providers.reasoning import ReasoningFilter, Retraction, without_reasoning
from tests.agent.providers.conftest import MAKERS, Server
from tests.agent.providers.test_contract import called

#: An answer -> what a person reads of it.
ANSWERS = {
    "<think>secret</think>Hello": "Hello",
    "<thinking>secret</thinking>Hello": "Hello",
    " \n<Think>\nsecret\n</THINK>\n\nHello": "Hello",
    "secret plan\n</think>\n\nHello": "Hello",
    "secret plan</thinking>Hello": "Hello",
    'secret "quoted"</think>Hello': "Hello",
    "secret\n```\ncode that goes on\n</think>\nHello": "Hello",
    "</think>\n\nHello": "Hello",
    "[THINK]secret[/THINK]Hello": "Hello",
    "◁think▷secret◁/think▷Hello": "Hello",
    "<seed:think>secret</seed:think>Hello": "Hello",
    "<antThinking>secret</antThinking>Hello": "Hello",
    "<thought type='plan'>secret</thought >Hello": "Hello",
    "<reasoning>secret</reasoning>\nHello": "Hello",
    "<|begin_of_thought|>secret<|end_of_thought|><|begin_of_solution|>Hello<|end_of_solution|>": "Hello",
    "<|START_THINKING|>secret<|END_THINKING|><|START_RESPONSE|>Hello<|END_RESPONSE|>": "Hello",
    "<|channel|>analysis<|message|>secret<|end|><|start|>assistant<|channel|>final<|message|>Hello": "Hello",
    "<think>one</think><think>two</think>Hello": "Hello",
    "<think>one<think>two</think>three</think>Hello": "Hello",
    "<think>secret</think>Hello</think>": "Hello",
    "Hello.\n<think>\nsecret\n</think>\nDone.": "Hello.\n\nDone.",
    "Hello <think>secret</think> there": "Hello  there",
    "<think>secret that never ends": "",
    "<think>\n\n</think>\n\nHello": "Hello",
    "<think />\nHello": "Hello",
    "<thinking effort='high'\nlang=en>secret</thinking effort='high'>Hello": "Hello",
    "<deep_think>secret</deep_think>Hello": "Hello",
    "<CoT>secret</CoT>Hello": "Hello",
    "<chain-of-thought>secret</chain-of-thought>Hello": "Hello",
    "<scratchpad>secret</scratchpad>\n<answer>Hello</answer>": "Hello",
    "<think>secret</thinking><final_answer>Hello</final_answer>": "Hello",
    "<|thinking|>secret<|/thinking|>Hello": "Hello",
    "<|begin_of_reasoning|>secret<|end_of_reasoning|>Hello": "Hello",
    "<unused94>thought\nsecret<unused95>Hello": "Hello",
    "secret plan </think> Hello": "Hello",
    "<think>`</think>` is secret</think>Hello": "Hello",
    "<think> the secret plan</think>\nHello": "Hello",
    "<think> the secret\nplan</think> hello": "hello",
    "<|channel|>final<|message|>Hello<|return|>": "Hello",
    "<|start|>assistant<|channel|>analysis<|message|>secret<|end|><|start|>assistant<|channel|>final<|message|>Hello"
    "<|return|>": "Hello",
    "analysis<|message|>secret<|end|><|start|>assistant<|channel|>final<|message|>Hello": "Hello",
    "<|channel|>commentary to=functions.x <|constrain|>json<|message|>{}<|call|>": "",
}
#: Answers that stay as they are.
TEXTS = (
    "Use `<think>` to start reasoning and `</think>` to end it.",
    "Use <think> to start reasoning and </think> to end it.",
    "`<think>` opens and `</think>` closes.",
    "The tag </think> ends it.",
    "The tags (<think> and </think>) are removed.",
    'He wrote "<think>x</think>" and left.',
    "Start with <think>and so on",
    "An example:\n```xml\n<think>plan</think>\n```",
    "```\n<think>\nplan\n</think>\n```\nis an example",
    "<think> is a tag that models write.",
    "<think> and </think> are tags.",
    "</think> is the closing tag.",
    "[THINK] is Mistral's tag, [/THINK] ends it.",
    "Write <think>...</think> around it.",
    "The tags are:\n- <think>\n- </think>\nThat is all.",
    "The pattern <think>(.*?)</think> finds it.",
    "`<|channel|>final<|message|>` begins the answer.",
    "<answer>42</answer>",
    "The empty tag <think/> does nothing.",
    "<thoughtful>ok</thoughtful>",
    "a < b and c > d, <b>bold</b>, [link](x), [1] <- here",
    "if x<y: print('[THINK')",
    "  text with its spaces \n",
    "",
)


def read(*pieces: str, holds_back: bool = False) -> str:
    """Return what is left of an answer that arrives in these pieces."""
    reading, shown = ReasoningFilter(holds_back=holds_back), list[str]()
    for text in [*(text for piece in pieces for text in reading.feed(piece)), *reading.end()]:
        if isinstance(text, Retraction):
            shown.clear()
        else:
            shown.append(text)
    return "".join(shown)


@pytest.mark.parametrize("answer", ANSWERS)
def test_reasoning_is_removed(answer: str) -> None:
    """Whole, in pieces of one character, and cut in two at any place."""
    expected = ANSWERS[answer]
    assert without_reasoning(answer) == expected
    assert read(*answer) == expected
    assert {read(answer[:at], answer[at:]) for at in range(len(answer))} == {expected}


@pytest.mark.parametrize("answer", TEXTS)
def test_text_about_the_tags_stays(answer: str) -> None:
    """Nothing of it is cut, however it arrives."""
    assert without_reasoning(answer) == answer
    assert read(*answer) == answer
    assert {read(answer[:at], answer[at:]) for at in range(len(answer) + 1)} == {answer}


@pytest.mark.parametrize("answer", [*ANSWERS, *TEXTS])
def test_withheld_text_comes_in_the_order_of_the_answer(answer: str) -> None:
    """Also the text before and after a pair of tags."""
    assert read(*answer, holds_back=True) == ANSWERS.get(answer, answer)


def test_text_without_tags_is_not_delayed() -> None:
    """Each piece is shown when it arrives."""
    reading = ReasoningFilter()
    assert [reading.feed(piece) for piece in ("Hel", "lo, 1 < 2", " and more")] == [
        ["Hel"],
        ["lo, 1 < 2"],
        [" and more"],
    ]


@pytest.mark.parametrize("name", list(MAKERS))
@pytest.mark.parametrize("streamed", [False, True])
def test_no_vendor_lets_reasoning_through(server: Server, name: str, *, streamed: bool) -> None:
    """Neither the result nor the stream has it, and text about the tags is whole."""
    heard: list[str] = []
    agent = Agent((), MAKERS[name](server.url), AgentConfig(model="", max_retries=0))
    handler = heard.append if streamed else None
    server.script({"text": "<thinking>a secret plan</thinking>Hi there"})
    assert agent.run("hello", stream_handler=handler).content == "Hi there"
    assert "secret" not in "".join(heard)
    server.script({"text": TEXTS[0]})
    assert agent.run("which tags?", stream_handler=handler).content == TEXTS[0]


class Unopened:
    """A model whose answers begin with reasoning that has only a closing tag."""

    def __init__(self, *, separates_reasoning: bool) -> None:
        self.name = f"unopened {separates_reasoning}"
        self.separates_reasoning = separates_reasoning

    async def astream(self, **_: Any) -> AsyncIterator[str | UsageStats]:
        """Yield an answer in pieces."""
        for piece in ("secret ", "plan\n</thi", "nk>\n\nHel", "lo"):
            yield piece
        yield UsageStats(1, 1, 2)


class Listener:
    """Receives a stream. `shown` is what stands at its end, `seen` all that ever stood there."""

    def __init__(self) -> None:
        self.shown, self.seen = "", ""

    def __call__(self, text: str) -> None:
        self.shown += text
        self.seen += text

    def anew(self) -> None:
        """Begin again."""
        self.shown = ""


@pytest.mark.parametrize("separates_reasoning", [True, False])
def test_stream_without_an_opening_tag_is_held_back(*, separates_reasoning: bool) -> None:
    """From the first answer on where a server may leave reasoning in the text, else once the model is known."""
    agent = Agent((), Unopened(separates_reasoning=separates_reasoning), AgentConfig(model="m"))
    first, second = Listener(), Listener()
    assert [agent.run("hi", stream_handler=each).content for each in (first, second)] == [
        "Hello",
        "Hello",
    ]
    assert (first.shown, second.seen) == ("Hello", "Hello")
    assert ("secret" in first.seen) is separates_reasoning


@pytest.mark.parametrize("name", ["compatible", "ollama"])
def test_stream_of_a_local_server_never_shows_reasoning_without_an_opening_tag(
    server: Server, name: str
) -> None:
    """Also in the first answer; a model without reasoning is streamed piece by piece."""
    agent = Agent((), MAKERS[name](server.url), AgentConfig(model="unopened-model", max_retries=0))
    listener = Listener()
    server.script(
        {"text": "a secret plan\n</think>\n\nHello there"},
        {"text": "a secret plan</think>Hello again"},
    )
    assert agent.run("hi", stream_handler=listener).content == "Hello there"
    assert agent.run("hi", stream_handler=listener).content == "Hello again"
    assert listener.seen == "Hello thereHello again"


@tool(read_only=True)
def lookup(item: str) -> str:
    """Look up an item."""
    return f"{item}: 3"


@pytest.mark.parametrize("streamed", [False, True])
def test_reasoning_in_the_text_is_sent_back_with_the_results_of_its_calls(
    server: Server, *, streamed: bool
) -> None:
    """Such models expect it within a turn, as they wrote it. The history keeps none."""
    text = "<think>a secret plan</think>One moment."
    server.script(
        {"text": text, "calls": [called("lookup", "c1", item="nuts")]}, {"text": "Three."}
    )
    agent = Agent([lookup], MAKERS["compatible"](server.url), AgentConfig(model="", max_retries=0))
    result = agent.run("nuts?", stream_handler=(lambda _: None) if streamed else None)
    assert server.bodies[1]["messages"][2]["content"] == text
    assert [message.content for message in result.messages] == [
        "nuts?",
        "One moment.",
        "nuts: 3",
        "Three.",
    ]


class Answers:
    """A provider of an application that leaves reasoning in its answers."""

    def complete(self, **_: Any) -> tuple[Message, UsageStats]:
        """Return an answer with a call."""
        return Message(Role.ASSISTANT, "<think>secret</think>Hi", (ToolCall("no"),)), UsageStats()


def test_provider_of_an_application_is_filtered_too() -> None:
    """The text beside a call is part of the history."""
    result = Agent((), Answers(), AgentConfig(max_iterations=1)).run("hi")
    assert result.messages[1].content == "Hi"
