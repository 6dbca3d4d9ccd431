"""Isolation: one agent serves many users, and no text of one conversation reaches another's model call."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sayso.agent import Agent, AgentConfig, ConversationMemory, Message, Role
from sayso.agent.channel.channel_agent import ChannelAgent
from sayso.agent.messages import UsageStats

SECRET = re.compile(r"secret-of-(\w+)-in-(\w+)")


class Listening:
    """A model that repeats its request, and records the secrets in each request."""

    def __init__(self) -> None:
        self.spoke_of: list[set[tuple[str, str]]] = []

    async def acomplete(self, **request):
        """Answer with the text of the whole request."""
        heard = " ".join(message.content for message in request["messages"])
        self.spoke_of.append(set(SECRET.findall(heard)))
        return Message(Role.ASSISTANT, f"heard: {heard}"[-300:]), UsageStats()


def secret(user: str, room: str) -> str:
    """Return a message with a secret of this user in this conversation."""
    return f"hello, my word is secret-of-{user}-in-{room}"


def listening_agent() -> tuple[ChannelAgent, Listening]:
    """Return an agent that also has a memory of its own, as in the seed."""
    model = Listening()
    return ChannelAgent(Agent([], model, AgentConfig(max_retries=0), ConversationMemory())), model


PLACES = st.tuples(st.sampled_from(["ana", "bob", "eve"]), st.sampled_from(["one", "two"]))


@settings(max_examples=60)
@given(st.lists(PLACES, min_size=2, max_size=12))
def test_each_request_contains_one_users_secret_only(said):
    """Users write in any order and in two conversations."""
    agent, model = listening_agent()
    for user, room in said:
        agent.ask_channel(user, secret(user, room), channel_id="chat", conversation_id=room)
    assert model.spoke_of == [{place} for place in said]


def test_concurrent_users_do_not_mix():
    """Forty threads share one agent."""
    agent, model = listening_agent()
    places = [(f"user{number % 20}", f"room{number % 3}") for number in range(200)]

    def ask(place):
        return agent.ask_channel(
            place[0], secret(*place), channel_id="chat", conversation_id=place[1]
        ).content

    with ThreadPoolExecutor(40) as pool:
        answers = list(pool.map(ask, places))
    assert all(len(people) == 1 for people in model.spoke_of)
    assert all(
        set(SECRET.findall(answer)) == {place}
        for answer, place in zip(answers, places, strict=True)
    )


@pytest.mark.parametrize("user", ["bob", "ana"])
def test_members_of_a_group_have_separate_histories(make_bot, user):
    """A worker keeps the history by scope: user and conversation."""
    bot = make_bot(lines=["fine"] * 3)
    bot.say("my word is cactus")
    bot.say("and mine is rose", user="bob")
    bot.say("what do you know of me?", user=user)
    heard = " ".join(message.content for message in bot.provider.requests[-1].messages)
    assert ("cactus" in heard, "rose" in heard) == (user == "ana", user == "bob")
