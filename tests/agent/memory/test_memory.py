"""ConversationMemory: the stored history is always a valid transcript."""

import json
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sayso.agent import ConversationMemory, Message, Role, ToolCall
from sayso.agent.memory.conversation import estimate_tokens
from sayso.channels.types import Media


def exchange(tool_calls=0, words="hi"):
    """Return a user message with the calls and the answer that follow it."""
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
    """The history begins with a user message, and every tool result has its call, at any limits."""
    memory = ConversationMemory(max_messages, max_tokens)
    for size in sizes:
        for message in exchange(size):
            memory.add(message)
    kept = memory.get_history()
    called = {call.id for message in kept for call in message.tool_calls}
    assert kept[0].role is Role.USER
    assert {message.tool_call_id for message in kept if message.role is Role.TOOL} == called
    assert kept[-len(exchange(sizes[-1])) :] == exchange(sizes[-1])


#: Any messages in any order: parallel calls, unanswered calls, late or repeated results, and reused ids.
MESSAGES = st.lists(
    st.one_of(
        st.builds(Message, st.just(Role.USER), st.text(max_size=30)),
        st.builds(Message, st.sampled_from([Role.ASSISTANT, Role.SYSTEM]), st.text(max_size=30)),
        st.lists(st.sampled_from("abcd"), min_size=1, max_size=3, unique=True).map(
            lambda ids: Message(
                Role.ASSISTANT, tool_calls=tuple(ToolCall("find", {"q": "x"}, id_) for id_ in ids)
            )
        ),
        st.builds(
            Message, st.just(Role.TOOL), st.text(max_size=30), tool_call_id=st.sampled_from("abcd")
        ),
    ),
    max_size=30,
)
LIMITS = {"max_messages": st.integers(1, 10), "max_tokens": st.none() | st.integers(1, 40)}


def answered(messages):
    """Return pairs of call and result by position: a result answers the last call of its id before it."""
    calls, pairs = {}, []
    for index, message in enumerate(messages):
        calls |= {call.id: index for call in message.tool_calls}
        if message.role is Role.TOOL:
            pairs.append((calls.get(message.tool_call_id), index))
    return pairs


@given(messages=MESSAGES, sizes=st.lists(st.integers(1, 6)), **LIMITS)
def test_trimming_never_separates_a_call_from_its_result(messages, sizes, max_messages, max_tokens):
    """For any messages in any portions, every result has its call, the first message is a user's, no message is
    lost or reordered, and a history above the limits is a single exchange that cannot be cut.
    """
    memory, gone, left = ConversationMemory(max_messages, max_tokens), [], list(messages)
    for size in [*sizes, len(left)]:
        gone += memory.add_many(left[:size])
        left = left[size:]
    kept = memory.get_history()
    assert all(call is not None for call, _ in answered(kept))
    assert not kept or kept[0].role is Role.USER
    assert sorted(map(id, [*gone, *kept])) == sorted(map(id, messages))
    places = {id(message): index for index, message in enumerate(messages)}
    assert [places[id(message)] for message in kept] == sorted(
        places[id(message)] for message in kept
    )
    cost = sum(map(estimate_tokens, kept))
    if len(kept) > max_messages or cost > (max_tokens or cost):
        starts = [index for index, message in enumerate(kept) if message.role is Role.USER]
        assert all(
            any(call < start <= result for call, result in answered(kept)) for start in starts[1:]
        )


@given(messages=MESSAGES, max_messages=st.integers(1, 10))
def test_dropped_messages_are_returned_oldest_first(messages, max_messages):
    """They keep their order, and invalid messages are included."""
    numbered = [
        Message(each.role, str(n), each.tool_calls, each.tool_call_id)
        for n, each in enumerate(messages)
    ]
    gone = [int(message.content) for message in ConversationMemory(max_messages).add_many(numbered)]
    assert gone == sorted(gone)


@given(messages=MESSAGES, **LIMITS)
def test_any_memory_round_trips_through_json_and_can_be_branched(
    messages, max_messages, max_tokens
):
    """A stored history is valid, so it is accepted when it is loaded."""
    memory = ConversationMemory(max_messages, max_tokens)
    for message in messages:
        memory.add(message)
    again = ConversationMemory.from_dict(json.loads(json.dumps(memory.to_dict())))
    assert again == memory
    assert memory.branch() == memory


def test_result_without_its_call_is_dropped():
    """The call was trimmed after a user message, and a vendor would refuse the result alone."""
    memory = ConversationMemory(max_messages=2)
    memory.add_many(
        [
            Message(Role.USER, "one"),
            Message(Role.ASSISTANT, tool_calls=(ToolCall("find", {}, "1"),)),
        ]
    )
    assert len(memory.add(Message(Role.USER, "two"))) == 2
    late = Message(Role.TOOL, "found", tool_call_id="1")
    assert memory.add(late) == [late]
    assert [message.content for message in memory.get_history()] == ["two"]


def test_threads_that_share_a_memory_lose_no_message():
    """Each exchange is stored whole and counted once."""
    memory, start = ConversationMemory(max_messages=10_000, max_tokens=10**6), threading.Barrier(4)

    def talk():
        start.wait()
        for _ in range(200):
            memory.add_many(exchange(1))

    threads = [threading.Thread(target=talk) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert memory.get_history() == exchange(1) * 800


def test_add_returns_the_dropped_messages():
    """They are needed for a summary."""
    memory = ConversationMemory(max_messages=4)
    assert memory.add_many(exchange(words="one") + exchange(words="two")) == []
    assert memory.add(Message(Role.USER, "three")) == exchange(words="one") + exchange(words="two")


def test_each_message_is_counted_once(monkeypatch):
    """A long history costs no more per turn than a short one; without a token limit nothing is counted."""
    counted = []
    monkeypatch.setattr(
        "sayso.agent.memory.conversation.estimate_tokens",
        lambda message: counted.append(message) or 1,
    )
    memory, free = ConversationMemory(1000, 900), ConversationMemory(1000)
    for _ in range(600):
        memory.add_many(exchange())
    assert (len(counted), len(memory.get_history())) == (1200, 748)
    free.add_many(exchange())
    assert len(counted) == 1200


def test_limits_may_be_changed_later():
    """They apply from the next message on."""
    memory = ConversationMemory()
    memory.add_many(exchange(words="x" * 400) + exchange(words="short"))
    memory.max_tokens = 50
    assert memory.add(Message(Role.USER, "now")) == exchange(words="x" * 400)


def test_oldest_exchanges_are_dropped_first():
    """A memory that is full falls to half of its limit, in whole exchanges."""
    memory = ConversationMemory(max_messages=9)
    for words in ("one", "two", "three", "four", "five"):
        memory.add_many(exchange(words=words))
    assert [message.content for message in memory.get_history()] == [
        "four",
        "answer",
        "five",
        "answer",
    ]


@pytest.mark.parametrize(
    "limits", [{"max_messages": 20}, {"max_messages": 1000, "max_tokens": 180}]
)
def test_history_begins_with_the_same_message_for_many_turns(limits):
    """A vendor's cache knows a request again only up to where it differs, so messages go seldom and many at once."""
    memory = ConversationMemory(**limits)
    first_messages = []
    sizes = []
    for number in range(100):
        memory.add_many(
            [
                Message(Role.USER, f"{number:020} and so on"),
                Message(Role.ASSISTANT, f"{number:040}"),
            ]
        )
        first_messages.append(memory.get_history()[0].content)
        sizes.append(len(memory.get_history()))
    turns_between = [first_messages.count(first) for first in dict.fromkeys(first_messages)]
    assert min(turns_between[:-1]) >= 5
    assert max(sizes) <= 20
    assert min(sizes[10:]) >= 8


@pytest.mark.parametrize("limits", [{"max_messages": 10}, {"max_messages": 1000, "max_tokens": 90}])
def test_what_a_model_is_shown_of_a_waiting_history_moves_in_steps(limits):
    """While no summary can be made, messages stay, and a model is shown the newest, at most twice the limits."""
    memory = ConversationMemory(**limits)
    shown = []
    for number in range(60):
        texts = (
            Message(Role.USER, f"{number:020} and so on"),
            Message(Role.ASSISTANT, f"{number:040}"),
        )
        memory.add_many(texts, trims=False)
        shown.append(memory.shown())
    assert len(memory.get_history()) == 120
    assert max(map(len, shown)) <= 20
    assert all(messages[-1].content == f"{number:040}" for number, messages in enumerate(shown))
    first_messages = [messages[0].content for messages in shown]
    assert min(first_messages.count(first) for first in first_messages[:-5]) >= 5


def test_token_limit_is_respected():
    """A few long messages trim the history like many short ones."""
    memory = ConversationMemory(max_tokens=50)
    memory.add_many(exchange(words="x" * 400))
    memory.add_many(exchange(words="short"))
    assert memory.get_history()[0].content == "short"


def test_returned_history_is_a_copy():
    """Changing the list does not change the memory."""
    memory = ConversationMemory()
    memory.add_many(exchange())
    memory.get_history().clear()
    assert len(memory.get_history()) == 2


def test_memory_round_trips_through_json():
    """Calls, results and media are restored."""
    memory = ConversationMemory(10, 1000)
    memory.add_many(exchange(1))
    memory.add(Message(Role.USER, "look", media=(Media("ref", "image/png", "a.png", 3, True),)))
    again = ConversationMemory.from_dict(json.loads(json.dumps(memory.to_dict())))
    assert again == memory


def test_data_of_an_older_version_is_loaded():
    """It has no summary and notes, and empty ones are not written."""
    data = {"max_messages": 20, "max_tokens": None, "messages": [{"role": "user", "content": "hi"}]}
    memory = ConversationMemory.from_dict(data)
    assert (memory.summary, memory.notes, memory.to_dict()) == ("", {}, data)


def test_summary_and_notes_round_trip_through_json():
    """They are part of the conversation."""
    memory = ConversationMemory(summary="Ana called.", notes={"entities": [{"name": "Ana"}]})
    again = ConversationMemory.from_dict(json.loads(json.dumps(memory.to_dict())))
    assert (again.summary, again.notes) == ("Ana called.", {"entities": [{"name": "Ana"}]})


def test_branch_is_independent():
    """Changes of a branch, including its notes, do not affect the original."""
    memory = ConversationMemory(summary="before", notes={"names": ["Ana"]})
    memory.add_many(exchange())
    branch = memory.branch()
    branch.add_many(exchange())
    branch.notes["names"].append("Bob")
    branch.summary = "after"
    assert (memory.get_history(), memory.notes, memory.summary) == (
        exchange(),
        {"names": ["Ana"]},
        "before",
    )


@pytest.mark.parametrize(("n", "expected"), [(0, []), (1, exchange()[1:]), (9, exchange())])
def test_recent_messages(n, expected):
    """At most this many are returned, oldest first."""
    memory = ConversationMemory()
    memory.add_many(exchange())
    assert memory.get_recent(n) == expected


def test_negative_number_of_recent_messages_is_refused():
    """It would return the oldest ones."""
    with pytest.raises(ValueError, match="n=-1"):
        ConversationMemory().get_recent(-1)


def test_clear_empties_the_memory():
    """The next conversation starts fresh."""
    memory = ConversationMemory(max_tokens=100, summary="before", notes={"names": ["Ana"]})
    memory.add_many(exchange(1))
    memory.clear()
    assert memory == ConversationMemory(max_tokens=100)
    memory.add_many(exchange(1))
    assert memory.get_history() == exchange(1)


@pytest.mark.parametrize("limit", [{"max_messages": 0}, {"max_tokens": 0}, {"max_tokens": -5}])
def test_limit_of_zero_or_less_is_refused(limit):
    """The error names the setting."""
    with pytest.raises(ValueError, match=next(iter(limit))):
        ConversationMemory(**limit)


@pytest.mark.parametrize(
    "damage",
    [
        {"summary": 5},
        {"notes": []},
        {"messages": [{"role": "user", "content": 5}]},
        {
            "messages": [
                {
                    "role": "assistant",
                    "tool_calls": [{"tool_name": "x", "parameters": [], "id": "1"}],
                }
            ]
        },
        {
            "messages": [
                {"role": "assistant", "tool_calls": [{"tool_name": 5, "parameters": {}, "id": "1"}]}
            ]
        },
    ],
    ids=["summary", "notes", "content", "parameters", "name"],
)
def test_invalid_data_is_refused_when_it_is_loaded(damage):
    """Otherwise it would fail inside a run."""
    with pytest.raises((TypeError, ValueError)):
        ConversationMemory.from_dict({**ConversationMemory().to_dict(), **damage})
