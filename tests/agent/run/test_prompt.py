"""PromptBuilder: a model that reads it can call the tools, and the parser understands what it is told to write."""

from __future__ import annotations

from sayso.agent import tool
from sayso.agent.run.text_tools import PromptBuilder, ToolCallParser


@tool
def search(query: str) -> str:
    """Search the web for information."""
    return query


def test_without_tools_nothing_is_said_of_calls():
    """A model that is told how would try."""
    assert PromptBuilder("Be kind.").build([]) == "Be kind."


def test_the_contract_and_every_schema_are_there():
    """The marker, the shape of a call, and each tool with its parameters."""
    prompt = PromptBuilder("Be kind.").build([search])
    for words in ("Be kind.", "TOOL_CALL", '"tool_name": "<name>"', '"name": "search"', "Search the web", '"required"'):
        assert words in prompt


def test_tools_and_their_schemas_are_the_same():
    """An agent passes either."""
    assert PromptBuilder().build([search]) == PromptBuilder().build([search.schema()])


def test_a_tool_without_description_is_shown():
    """Other people's schemas leave it out."""
    assert '"name": "x"' in PromptBuilder().build([{"name": "x", "parameters": {}}])


def test_the_prompt_itself_calls_nothing():
    """A model that repeats it gives no order."""
    assert ToolCallParser().parse(PromptBuilder().build([search])).tool_calls == ()
