"""fit_transcript: a conversation that is longer than the model's context window."""

from __future__ import annotations

import pytest

from sayso.agent import Agent, AgentConfig, ConversationMemory
from sayso.agent.messages import Message, Role, ToolCall
from sayso.agent.providers.base import ProviderError
from sayso.agent.providers.testing import ScriptedProvider
from sayso.agent.run.context_window import fit_transcript, transcript_tokens
from sayso.channels.types import Media

ASKED = Message(Role.USER, "And now?")


def exchanges(count, words=20):
    """Return this many exchanges of a question and an answer."""
    history = []
    for number in range(count):
        history.append(Message(Role.USER, f"question {number} " + "word " * words))
        history.append(Message(Role.ASSISTANT, f"answer {number}"))
    return history


def fitted(history, max_tokens, current=(ASKED,)):
    """Return what is sent of a conversation."""
    return fit_transcript(history, current, max_tokens=max_tokens, result_tokens=max_tokens)


@pytest.mark.parametrize("max_tokens", [500, 1000, 1500])
def test_transcript_begins_with_the_same_message_for_many_turns(max_tokens):
    """It is full in every turn, and its beginning changes seldom, so that a vendor's cache knows it."""
    history = exchanges(200)
    sent = [fitted(history[: 2 * turns], max_tokens) for turns in range(1, 201)]
    assert all(transcript_tokens(messages) <= max_tokens for messages in sent)
    assert all(
        messages[-2:] == [history[2 * turns + 1], ASKED] for turns, messages in enumerate(sent)
    )
    first_messages = [messages[0] for messages in sent]
    turns_between = [first_messages.count(first) for first in dict.fromkeys(first_messages)]
    assert min(turns_between[:-1]) >= max_tokens // 250
    full = sent[max_tokens // 20 :]
    assert min(map(transcript_tokens, full)) >= max_tokens * 0.4


def test_limit_that_differs_a_little_moves_nothing():
    """What the transcript may take depends on other texts, such as entities, which change with every turn."""
    history = exchanges(100)
    sent = [fitted(history, max_tokens)[0] for max_tokens in range(1500, 1600, 7)]
    assert len(set(map(id, sent))) <= 2


def test_last_exchange_stays_whole_if_it_fits():
    """A step that would take it is not taken."""
    history = [*exchanges(3), *exchanges(1, words=150)]
    sent = fitted(history, 350)
    assert sent == [*history[-2:], ASKED]


def test_everything_that_fits_is_sent():
    """Nothing is left out before the limit is reached."""
    history = exchanges(5)
    assert fitted(history, transcript_tokens([*history, ASKED])) == [*history, ASKED]
    assert fitted([], 10) == [ASKED]


def test_result_is_whole_again_once_the_files_are_left_out():
    """The files were too long. A limit of results that was tried before is not kept."""
    result = "row of a table. " * 400
    memory = ConversationMemory()
    memory.add(Message(Role.USER, "Show the table"))
    memory.add(Message(Role.ASSISTANT, "", tool_calls=(ToolCall("table", {}, "c1"),)))
    memory.add(Message(Role.TOOL, result, tool_call_id="c1", tool_name="table"))
    memory.add(Message(Role.ASSISTANT, "Here."))
    photos = tuple(Media(str(number), "image/png") for number in range(20))
    too_long = ProviderError("prompt is too long")
    too_long.kind = "too_long"
    too_long.fitting_share = 0.1
    provider = ScriptedProvider([too_long, "Cats."])

    agent = Agent((), provider, AgentConfig(max_retries=0), memory)
    assert agent.run([Message(Role.USER, "And these?", media=photos)]).content == "Cats."
    assert result in [message.content for message in provider.requests[1].messages]
