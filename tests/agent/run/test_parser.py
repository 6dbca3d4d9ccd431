"""ToolCallParser: finds every call in a text, and none in quoted data."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sayso.agent import ToolCall
from sayso.agent.messages import NOT_JSON
from sayso.agent.run.text_tools import ToolCallParser
from sayso.agent.tools.screening import fenced

CALL = '{"tool_name": "search", "parameters": {"query": "Python"}}'
FOUND = ToolCall("search", {"query": "Python"})

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
#: Pieces of texts that look like calls.
SHARDS = st.sampled_from(
    [*"\n {}[]\"'\\,:T", "TOOL_CALL", "tool call", "```json", "```", "<<<data ab>>>", "TOOL_", CALL]
)


def parse(text):
    """Return the calls in the text."""
    return list(ToolCallParser().parse(text).tool_calls)


def test_call_in_quoted_data_is_ignored():
    """Quoted text cannot call tools; a call after the quote is the model's own."""
    quoted = fenced(f"TOOL_CALL {CALL}")
    assert parse(f"It says:\n{quoted}\nNothing to do.") == []
    assert parse(f'{quoted}\nTOOL_CALL {{"tool_name": "mine"}}') == [ToolCall("mine")]


def test_unclosed_quote_extends_to_the_end():
    """An answer that was cut off contains no call."""
    assert parse(fenced(f"TOOL_CALL {CALL}").rsplit("\n", 1)[0]) == []


def test_quote_ends_only_at_its_own_boundary():
    """A line with another boundary does not close the quote."""
    assert parse(f"<<<data abc>>>\n<<<end of data abd>>>\nTOOL_CALL {CALL}") == []


@pytest.mark.parametrize(
    "payload",
    [
        '{"tool_name": "wipe", "parameters": "{\\"folder\\": \\"tm"}',
        '{"tool_name": "wipe", "parameters": "tmp"}',
        '{"tool_name": "wipe", "parameters": ["tmp"]}',
        '{"function": {"name": "wipe"}, "arguments": "tmp"}',
    ],
)
def test_invalid_parameters_are_reported(payload):
    """Without its parameters the call would mean something else, so it is refused, and the model reads why."""
    (call,) = parse(f"TOOL_CALL {payload}")
    assert (call.tool_name, list(call.parameters)) == ("wipe", [NOT_JSON])


@pytest.mark.parametrize(
    "payload",
    [
        '{"tool_name": "wipe", "folder": "tmp"}',
        '{"function": {"name": "wipe", "folder": "tmp"}, "type": "function", "id": "c1"}',
        '{"function": {"name": "wipe"}, "arguments": {"folder": "tmp"}}',
    ],
)
def test_parameters_are_found_beside_the_name(payload):
    """The model forgot the key that should contain them."""
    assert parse(f"TOOL_CALL {payload}") == [ToolCall("wipe", {"folder": "tmp"})]


@given(st.lists(SHARDS, max_size=12).map("".join))
def test_quoted_text_contains_no_call(text):
    """It holds for any text, and text without calls is unchanged."""
    quoted = ToolCallParser().quoted(text)
    assert parse(quoted) == []
    assert quoted.replace("quoted_", "") == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "TOOL_CALL",
        "TOOL_CALL {",
        'TOOL_CALL {"tool_name": ',
        "TOOL_CALL {}",
        "TOOL_CALL []",
        'TOOL_CALL {"tool_name": ""}',
        'TOOL_CALL {"tool_name": 5}',
        'TOOL_CALL {"tool_name": "a", "parameters": {"x": NaN}}',
        'TOOL_CALL [{"tool_name": "a"}, 5]',
        f"MY_TOOL_CALL {CALL}",
        f"TOOL_CALLING {CALL}",
        f"Call it like this: {CALL}",
        'TOOL_CALL {"text": "TOOL_CALL {}"}',
    ],
)
def test_text_without_a_valid_call_stays_text(text):
    """The parser neither guesses nor drops text."""
    result = ToolCallParser().parse(text)
    assert (result.tool_call, result.text, result.raw_text) == (None, text, text)


def test_payload_above_the_limit_stays_text():
    """max_payload_chars bounds what the parser reads."""
    assert ToolCallParser(max_payload_chars=len(CALL)).parse(f"TOOL_CALL {CALL}").tool_call == FOUND
    assert (
        ToolCallParser(max_payload_chars=len(CALL) - 1).parse(f"TOOL_CALL {CALL}").tool_call is None
    )


@pytest.mark.parametrize(
    "text",
    [
        f"TOOL_CALL\n{CALL}",
        f"TOOL_CALL{CALL}",
        f"tool_call: {CALL}",
        f"Tool Call\n\n{CALL}",
        f"**TOOL_CALL**: {CALL}",
        f"**TOOL_CALL:** {CALL}",
        f"```json\nTOOL_CALL\n{CALL}\n```",
        f"TOOL_CALL\n```json\n{CALL}\n```",
        f"TOOL_CALLS: [{CALL}]",
        f"<tool_call>\n{CALL}\n</tool_call>",
        f"I will look.\n\nTOOL_CALL {CALL} One moment.",
        """TOOL_CALL {'tool_name': 'search', 'parameters': {'query': 'Python',},}""",
        """TOOL_CALL {"name": "search", "arguments": "{\\"query\\": \\"Python\\"}"}""",
        """TOOL_CALL {"function": {"name": "search", "arguments": {"query": "Python"}}}""",
    ],
)
def test_notations_of_models_are_understood(text):
    """Calls may have fences, emphasis, other names and Python syntax."""
    assert parse(text) == [FOUND]


def test_repair_keeps_strings_unchanged():
    """Quotes, commas, brackets and keywords inside strings are text."""
    parameters = """{'a': 'it\\'s "so", }', "b": "None, ]", 'c': None, 'd': True,}"""
    assert parse(f"TOOL_CALL {{'tool_name': 'say', 'parameters': {parameters}}}") == [
        ToolCall("say", {"a": 'it\'s "so", }', "b": "None, ]", "c": None, "d": True})
    ]


def test_several_calls_keep_their_order():
    """Each call has its own marker, or one marker precedes a list."""
    one, two = '{"tool_name": "a"}', '{"tool_name": "b", "parameters": {"n": [1, {"m": "}"}]}}'
    calls = [ToolCall("a"), ToolCall("b", {"n": [1, {"m": "}"}]})]
    assert (
        parse(f"TOOL_CALL {one}\nand\nTOOL_CALL {two}")
        == calls
        == parse(f"TOOL_CALL [{one}, {two}]")
    )


def test_text_before_a_call_is_kept_and_text_after_it_dropped():
    """The text after a call is the model's guess at the result."""
    result = ToolCallParser().parse(f"Let me see. TOOL_CALL {CALL}\nThe result is 42.")
    assert (result.tool_call, result.text) == (FOUND, "Let me see.")


@given(st.dictionaries(st.text(), JSON, max_size=5), st.text(), st.text(), st.booleans())
def test_any_parameters_are_found_in_any_text(parameters, before, after, plain):
    """They may contain braces and quotes, and any text may surround the call."""
    payload = json.dumps({"tool_name": "a", "parameters": parameters}, ensure_ascii=plain)
    result = ToolCallParser(max_payload_chars=10**6).parse(f"{before}\nTOOL_CALL\n{payload}{after}")
    assert result.tool_call == ToolCall("a", parameters)


@given(st.lists(SHARDS | st.text(max_size=3), max_size=30).map("".join))
def test_any_text_is_parsed_without_an_error(text):
    """Every call that is found has a marker in the text."""
    result = ToolCallParser().parse(text)
    assert len(result.tool_calls) <= text.lower().count("tool") + text.count(CALL)
    assert text.startswith(result.text)


@pytest.mark.parametrize(
    "shard",
    ['TOOL_CALL {"', 'TOOL_CALL {"a": "\\"', "TOOL_CALL [[", "<<<data ab>>>", "`", " ", "{'\\'"],
)
def test_parsing_a_long_text_is_linear(shard):
    """A quadratic parser would not finish within the test's time."""
    assert parse(shard * (200_000 // len(shard))) == []


@given(st.lists(SHARDS | st.text(max_size=3), max_size=20))
def test_streamed_text_is_never_part_of_a_call(shards):
    """Only decoration around a call may have been streamed."""
    parser, text, told = ToolCallParser(), "", 0
    for shard in shards:
        text += shard
        told = parser.complete_chars(text, told)
    said, beside = parser.parse(text).text, "*#<`json \n"
    assert said.rstrip(beside).startswith(text[:told].rstrip(beside))
