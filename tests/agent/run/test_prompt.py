"""PromptBuilder: a model can call tools by its text, and the parser understands the described notation."""

from __future__ import annotations

from sayso.agent import tool
from sayso.agent.run.text_tools import PromptBuilder, ToolCallParser


@tool
def search(query: str) -> str:
    """Search the web for information."""
    return query


def test_prompt_without_tools_does_not_mention_calls():
    """A model that reads about calls would try one."""
    assert PromptBuilder("Be kind.").build([]) == "Be kind."


def test_prompt_contains_the_contract_and_every_schema():
    """It has the marker, the shape of a call, and each tool with its parameters."""
    prompt = PromptBuilder("Be kind.").build([search])
    for words in (
        "Be kind.",
        "TOOL_CALL",
        '"tool_name": "<name>"',
        '"name": "search"',
        "Search the web",
        '"required"',
    ):
        assert words in prompt


def test_prompt_accepts_tools_or_their_schemas():
    """An agent passes either."""
    assert PromptBuilder().build([search]) == PromptBuilder().build([search.schema()])


def test_tool_without_a_description_is_included():
    """Schemas of other systems may lack a description."""
    assert '"name": "x"' in PromptBuilder().build([{"name": "x", "parameters": {}}])


def test_prompt_itself_contains_no_call():
    """A model that repeats the prompt calls no tool."""
    assert ToolCallParser().parse(PromptBuilder().build([search])).tool_calls == ()
