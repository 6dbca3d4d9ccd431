"""WordRanking: what people say finds the tools that have other words for it."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

import benchmarks.selection.__main__ as shop
from benchmarks.selection.published import (
    CATALOGS,
    PublishedRequest,
    read_catalog,
    read_requests,
    runs,
)
from sayso.agent import Tool
from sayso.agent.toolsets.word_ranking import WordRanking


def make(name: str, description: str, *parameters: str) -> Tool:
    """Return a tool that does nothing."""
    schema = {"type": "object", "properties": {each: {"type": "string"} for each in parameters}}
    return Tool(name, description, schema, lambda **_: name)


def nearest(said: str, tools: list[Tool]) -> str:
    """Return the name of the tool with the best score; of two equal ones the first."""
    scores = WordRanking(tools).scores(said)
    return tools[scores.index(max(scores))].name


PLANTS = [
    make("getPlant", "Get a plant."),
    make("listPlants", "List all plants of a garden."),
    make("createPlant", "Add a plant to a garden."),
    make("updatePlant", "Change a plant.", "pot", "name"),
    make("deletePlant", "Delete a plant."),
    make("movePlantToOtherGarden", "Move a plant to another garden."),
    make("restorePlant", "Restore a deleted plant."),
    make("listGardenMembers", "List the members of a garden."),
    make("removeGardenMember", "Remove a member from a garden."),
    make("garden_settings_watering_schedule_get", "Get the watering schedule of a garden."),
]


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("get rid of that plant", "deletePlant"),
        ("throw the old plant away", "deletePlant"),
        ("bring the plant back that we deleted", "restorePlant"),
        ("which plants are there?", "listPlants"),
        ("please put a new plant into the garden", "createPlant"),
        ("who has access to the garden?", "listGardenMembers"),
        ("kick Tom out of the garden", "removeGardenMember"),
        ("Tom should no longer be in the garden, he is a member", "removeGardenMember"),
    ],
)
def test_people_use_other_words_than_tools(said: str, found: str) -> None:
    """Phrases, also with words between their parts, stand for the words that tools have."""
    assert nearest(said, PLANTS) == found


@pytest.mark.parametrize("apostrophe", ["'", "\u2019"])
def test_apostrophe_separates_words_in_other_languages_than_english(apostrophe: str) -> None:
    """In French the article is joined to its noun, which is often what a request is about."""
    tools = [
        make("creer", "Crée une nouvelle facture pour le client."),
        make("supprimer", "Supprime un utilisateur de la liste."),
    ]
    assert nearest(f"où est l{apostrophe}utilisateur", tools) == "supprimer"


def test_tool_that_does_what_the_text_asks_for_comes_first() -> None:
    """All tools have the word "plant": what they do decides."""
    names = [each.name for each in PLANTS]
    scores = dict(zip(names, WordRanking(PLANTS).scores("erase plant 7"), strict=True))
    assert scores["deletePlant"] > scores["getPlant"]
    assert scores["deletePlant"] > scores["createPlant"]


def test_shorter_name_wins_among_tools_with_the_same_words() -> None:
    """A tool whose name speaks of more than the text is less likely meant."""
    tools = [make("deletePlantLabelHistory", "Delete."), make("deletePlant", "Delete.")]
    assert nearest("delete the plant", tools) == "deletePlant"


def test_filler_in_a_name_need_not_be_mentioned() -> None:
    """A name with "specified" is mentioned as fully as the same name without it."""
    tools = [make("deleteSpecifiedPlant", "x"), make("deleteDryPlant", "x")]
    filled, longer = WordRanking(tools).scores("delete the plant")
    assert filled > longer


def test_name_weighs_more_than_a_long_description() -> None:
    """A word that a description merely mentions does not beat the tool that is about it."""
    description = "Water a garden. Any fence, pot, fence or fence is left dry. " * 5
    mentions = make("waterGarden", description)
    assert nearest("the fence", [mentions, make("fence", "All about it.")]) == "fence"


def test_names_of_parameters_count() -> None:
    """A tool may say nowhere else what it changes."""
    colour = make("update", "Change it.", "colour")
    interval = make("change", "Change it.", "watering_interval")
    assert nearest("change the watering interval", [colour, interval]) == "change"


@given(st.text(), st.lists(st.text(min_size=1).filter(str.strip)))
def test_any_text_can_be_scored(said: str, descriptions: list[str]) -> None:
    """Each tool has one finite score, and no score is negative."""
    scores = WordRanking([make("t", each) for each in descriptions]).scores(said)
    assert len(scores) == len(descriptions)
    assert all(0 <= score < math.inf for score in scores)


@pytest.mark.parametrize("said", ["thanks!", "ok great", "hm, I see", "perfect, thank you so much"])
def test_small_talk_shares_no_word_with_any_tool(said: str) -> None:
    """A conversation gets no tools for it."""
    notes = make("note", "Show the notes, and see how much is left for now.")
    assert not any(WordRanking([*PLANTS, notes]).scores(said))


@pytest.mark.slow
def test_agent_calls_the_right_tool_of_published_catalogs() -> None:
    """At once for most plain requests, and after one search for at least 95 of 100."""
    models = runs(read_requests())
    assert sum(model.called_in == 1 for model in models) >= 75
    assert sum(model.called_in > 0 for model in models) >= 95


def test_published_requests_name_tools_of_their_catalog() -> None:
    """A misspelled answer would count as missed, or a request as found by chance."""
    requests: list[PublishedRequest] = read_requests()
    assert len(requests) == 100
    for catalog in CATALOGS:
        names = {tool.name for tool in read_catalog(catalog)}
        assert all(names.issuperset(each.tools) for each in requests if each.catalog == catalog)


#: Prints the scores of another process.
SCORES = """
import json
from benchmarks.selection.__main__ import read_requests, read_tools
from sayso.agent.toolsets.word_ranking import WordRanking
ranking = WordRanking(read_tools())
print(json.dumps([ranking.scores(request.text) for request in read_requests("held_out")]))
"""


def test_every_process_gives_the_same_scores() -> None:
    """Sets have another order in each process, and floats added in another order differ.

    Two workers would show different tools.
    """
    other = subprocess.run(
        [sys.executable, "-c", SCORES],
        env={**os.environ, "PYTHONHASHSEED": "4711"},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    ranking = WordRanking(shop.read_tools())
    requests = shop.read_requests("held_out")
    assert json.loads(other.stdout) == [ranking.scores(each.text) for each in requests]
