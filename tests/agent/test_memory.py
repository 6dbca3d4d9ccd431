"""ConversationMemory: what is kept always makes sense on its own."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import ConversationMemory, Message, Role, ToolCall
from channels.types import Media


def exchange(tool_calls=0, words="hi"):
    """A user's message and what followed it."""
    messages = [Message(Role.USER, words)]
    for number in range(tool_calls):
        call = ToolCall("find", {"n": number}, f"c{number}")
        messages += [
            Message(Role.ASSISTANT, tool_calls=(call,)),
            Message(Role.TOOL, "found", tool_call_id=call.id, tool_name="find"),
        ]
    return [*messages, Message(Role.ASSISTANT, "answer")]


@given(
    sizes=st.lists(st.integers(0, 5), min_size=1, max_size=8),
    max_messages=st.integers(1, 12),
    max_tokens=st.none() | st.integers(1, 40),
)
def test_trimming_never_splits_an_exchange(sizes, max_messages, max_tokens):
    """The history begins with a user and every tool result has its call, whatever the limits."""
    memory = ConversationMemory(max_messages, max_tokens)
    for size in sizes:
        for message in exchange(size):
            memory.add(message)
    kept = memory.get_history()
    called = {call.id for message in kept for call in message.tool_calls}
    assert kept[0].role is Role.USER
    assert {message.tool_call_id for message in kept if message.role is Role.TOOL} == called
    assert kept[-len(exchange(sizes[-1])) :] == exchange(sizes[-1])


def test_oldest_exchange_goes_first():
    """A sliding window over whole exchanges."""
    memory = ConversationMemory(max_messages=5)
    for words in ("one", "two", "three"):
        memory.add_many(exchange(words=words))
    assert [message.content for message in memory.get_history()] == ["two", "answer", "three", "answer"]


def test_token_limit_counts_too():
    """A few long messages trim as well as many short ones."""
    memory = ConversationMemory(max_tokens=50)
    memory.add_many(exchange(words="x" * 400))
    memory.add_many(exchange(words="short"))
    assert memory.get_history()[0].content == "short"


def test_history_is_the_callers_own():
    """Changing the list changes no memory."""
    memory = ConversationMemory()
    memory.add_many(exchange())
    memory.get_history().clear()
    assert len(memory.get_history()) == 2


def test_memory_survives_json():
    """Calls, results and media come back as they were."""
    memory = ConversationMemory(10, 1000)
    memory.add_many(exchange(1))
    memory.add(Message(Role.USER, "look", media=(Media("ref", "image/png", "a.png", 3, True),)))
    again = ConversationMemory.from_dict(json.loads(json.dumps(memory.to_dict())))
    assert again == memory


def test_clear_forgets():
    """Nothing is left."""
    memory = ConversationMemory()
    memory.add_many(exchange())
    memory.clear()
    assert memory.get_history() == []


def test_zero_messages_is_refused():
    """A memory that keeps nothing is a mistake."""
    with pytest.raises(ValueError, match="max_messages"):
        ConversationMemory(max_messages=0)
