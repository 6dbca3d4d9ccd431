"""Isolation: one agent serves many people, and nothing of one conversation reaches another's model call."""

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
    """A model that repeats what it hears, and remembers of whom each request spoke."""

    def __init__(self) -> None:
        self.spoke_of: list[set[tuple[str, str]]] = []

    async def acomplete(self, **request):
        """Answer with all that the request holds."""
        heard = " ".join(message.content for message in request["messages"])
        self.spoke_of.append(set(SECRET.findall(heard)))
        return Message(Role.ASSISTANT, f"heard: {heard}"[-300:]), UsageStats()


def secret(user: str, room: str) -> str:
    """What this person says there, and nowhere else."""
    return f"hello, my word is secret-of-{user}-in-{room}"


def listening_agent() -> tuple[ChannelAgent, Listening]:
    """An agent with a memory of its own as well, as the seed's users give it one."""
    model = Listening()
    return ChannelAgent(Agent([], model, AgentConfig(max_retries=0), ConversationMemory())), model


PLACES = st.tuples(st.sampled_from(["ana", "bob", "eve"]), st.sampled_from(["one", "two"]))


@settings(max_examples=60)
@given(st.lists(PLACES, min_size=2, max_size=12))
def test_each_request_speaks_of_one_person_in_one_place(said):
    """Whoever speaks in whatever order."""
    agent, model = listening_agent()
    for user, room in said:
        agent.ask_channel(user, secret(user, room), channel_id="chat", conversation_id=room)
    assert model.spoke_of == [{place} for place in said]


def test_many_people_at_once_do_not_mix():
    """Forty threads, one agent."""
    agent, model = listening_agent()
    places = [(f"user{number % 20}", f"room{number % 3}") for number in range(200)]

    def ask(place):
        return agent.ask_channel(place[0], secret(*place), channel_id="chat", conversation_id=place[1]).content

    with ThreadPoolExecutor(40) as pool:
        answers = list(pool.map(ask, places))
    assert all(len(people) == 1 for people in model.spoke_of)
    assert all(set(SECRET.findall(answer)) == {place} for answer, place in zip(answers, places, strict=True))


@pytest.mark.parametrize("user", ["bob", "ana"])
def test_in_a_room_everybody_has_a_memory_of_their_own(make_bot, user):
    """A worker keeps the history by scope: person and place."""
    bot = make_bot(lines=["fine"] * 3)
    bot.say("my word is cactus")
    bot.say("and mine is rose", user="bob")
    bot.say("what do you know of me?", user=user)
    heard = " ".join(message.content for message in bot.provider.requests[-1].messages)
    assert ("cactus" in heard, "rose" in heard) == (user == "ana", user == "bob")
