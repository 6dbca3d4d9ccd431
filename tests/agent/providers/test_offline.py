"""OfflineProvider: finds the requested tool, asks if it cannot, and never pretends to be a model."""

import asyncio
import json
from datetime import date
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sayso.agent import (
    Agent,
    AgentConfig,
    Ambiguous,
    Message,
    NotFound,
    OfflineProvider,
    Role,
    RoleBasedSelector,
    ToolPolicy,
    tool,
)
from sayso.agent.providers.offline_matching import match_tools
from sayso.channels.types import Media


@tool
def delete_invoice(invoice_id: str) -> str:
    """Delete an invoice for good."""
    return invoice_id


@tool
def find_invoice(query: str, limit: int = 10) -> str:
    """Find an invoice."""
    return query


@tool
def refund_payment(payment_id: str, amount: float, currency: str = "EUR") -> str:
    """Refund a payment."""
    return payment_id


@tool
def sales_chart(period: Literal["week", "month"] = "month") -> str:
    """Draw a chart of the sales."""
    return period


@tool
def book_table(day: date, guests: int, outside: bool = False) -> str:
    """Book a table."""
    return str(day)


TOOLS = (delete_invoice, find_invoice, refund_payment, sales_chart, book_table)
SCHEMAS = [each.schema() for each in TOOLS]


def answer(messages, schemas=SCHEMAS):
    """Return the provider's answer to a transcript or to one text."""
    if isinstance(messages, str):
        messages = [Message(Role.USER, messages)]
    provider = OfflineProvider(today=lambda: date(2026, 3, 1))
    message, _ = asyncio.run(
        provider.acomplete(
            model="m",
            system_prompt="",
            messages=messages,
            tools=schemas,
            temperature=0,
            max_tokens=9,
        )
    )
    return message


def called(text):
    """Return the calls for a text, or the reply."""
    message = answer(text)
    return [(call.tool_name, call.parameters) for call in message.tool_calls] or message.content


def told(*results):
    """Return the provider's reply to tool results."""
    return answer(
        [Message(Role.USER, "go"), *(Message(Role.TOOL, result) for result in results)]
    ).content


@pytest.mark.parametrize(
    "text",
    [
        "hello there",
        "yes",
        "no",
        "ok thanks",
        "I love this",
        "show me",
        "good morning!",
        "'delete invoice'",
        "",
        "🙂",
        "//",
    ],
)
def test_small_talk_calls_no_tool(text):
    """Small talk, a bare yes and quoted text are echoed, and the user reads what works."""
    echo, _, told = called(text).partition("\n")
    assert echo == f"You said: {text}".rstrip()
    assert "I am not a language model" in told
    assert "I can delete invoice, find invoice, refund payment, sales chart and book table" in told
    assert told.endswith("For example: /delete_invoice invoice_id=INV-42")


def test_long_list_of_tools_is_cut():
    """A bot may have a hundred tools."""
    many = [{**SCHEMAS[0], "name": f"tool_{number}"} for number in range(50)]
    assert "tool 11 and 38 more. For example" in answer("hello", many).content
    assert answer("hello", []).content == "You said: hello"


def test_several_identifiers_in_one_text_are_one_call_each():
    """They become a plan, but only if the tool needs nothing except an identifier."""
    calls = answer("delete INV-42, INV-47 and INV-55, please, and INV-42").tool_calls
    assert [call.parameters for call in calls] == [
        {"invoice_id": f"INV-{number}"} for number in (42, 47, 55)
    ]
    assert len({call.id for call in calls}) == 3
    assert len(answer("refund 20 of PAY-1 and 30 of PAY-2").tool_calls) <= 1


@pytest.mark.parametrize(
    "text",
    [
        "don't delete invoice INV-42",
        "do not delete INV-42",
        "Never delete invoices",
        "I didn\u2019t delete invoice INV-42",
        "you cannot delete invoice INV-42",
        "you cant delete invoice INV-42",
        "you shall not delete invoice INV-42",
        "it should not delete INV-42",
    ],
)
def test_negated_request_calls_no_tool(text):
    """A negation contains the words of the request."""
    assert called(text).startswith(f"You said: {text}\n")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("undelete task 5", "delete_task"),
        ("un-delete task 5", "delete_task"),
        ("restore the deleted task 5", "delete_task"),
        ("cancel the deletion of task 5", "delete_task"),
        ("cancel the task deletion", "delete_task"),
        ("list all tasks without deleting any", "delete_task"),
        ("not delete task 5", "delete_task"),
        ("stop deleting task 5", "delete_task"),
        ("add the task", "delete_task"),
        ("unblock user 3", "block_user"),
        ("block user 3", "unblock_user"),
        ("activate user 3", "deactivate_user"),
        ("reopen account 3", "close_account"),
    ],
)
def test_request_for_the_opposite_calls_no_tool(text, name):
    """It has the noun of the tool, and no tool with its own verb is there."""
    assert match_tools(text, [schema_of(name)]) == []


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("restore the deleted task 5", "restore_deleted_task"),
        ("unblock user 3", "unblock_user"),
        ("cancel order 5", "cancel_order"),
        ("stop the timer and delete task 5", "delete_task"),
        ("stop the timer", "stop_timer"),
        ("delete open task 5", "delete_task"),
        ("add a note: remove the chairs", "add_note"),
        ("list the disabled users", "list_users"),
    ],
)
def test_tool_with_the_verb_of_the_request_is_called(text, name):
    """A word with an opposite may also be a part of its name, or stand beside its own verb."""
    assert [each["name"] for each in match_tools(text, [schema_of(name)])] == [name]


def test_negation_in_a_quotation_forbids_nothing():
    """What is quoted is the content of the note."""
    matches = match_tools('add a note "I can\'t come"', [schema_of("add_note")])
    assert [each["name"] for each in matches] == ["add_note"]


@pytest.mark.parametrize(
    ("text", "names"),
    [("look up the order", ["look_up"]), ("show all orders", ["show_all"]), ("show me", [])],
)
def test_name_of_a_general_verb_and_a_small_word_is_found_as_a_whole(text, names):
    """Without the small word, the verb alone names no tool."""
    matches = match_tools(text, [schema_of("look_up"), schema_of("show_all")])
    assert [each["name"] for each in matches] == names


def schema_of(name):
    """Return the schema of a tool without parameters."""
    return {"name": name, "description": "", "parameters": {"type": "object", "properties": {}}}


@given(st.text(max_size=80))
def test_any_text_has_an_answer(text):
    """Any text has the same answer twice, also as a command or after a tool's name."""
    for said in (
        text,
        f"/{text}",
        f"delete invoice {text}",
        f"/book_table {text}",
        f"refund payment {text}",
    ):
        assert answer(said) == answer(said)
        assert answer(said).content or answer(said).tool_calls
    assert isinstance(told(text), str)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda x: (
            st.lists(x, max_size=3)
            | st.dictionaries(st.sampled_from(["kind", "matches", "a"]), x, max_size=3)
        ),
        max_leaves=8,
    )
)
def test_any_result_has_a_reply(value):
    """Any JSON result of a tool is put into words."""
    assert isinstance(told(json.dumps(value)), str)


@pytest.mark.parametrize(
    ("text", "name", "args"),
    [
        ("delete invoice INV-42", "delete_invoice", {"invoice_id": "INV-42"}),
        ("please delete the invoice INV-42", "delete_invoice", {"invoice_id": "INV-42"}),
        ("Deleting invoices 42", "delete_invoice", {"invoice_id": "42"}),
        ('delete invoice "A 7"', "delete_invoice", {"invoice_id": "A 7"}),
        ("delete invoice invoice_id=X", "delete_invoice", {"invoice_id": "X"}),
        (
            "find the invoice of Bank of America please",
            "find_invoice",
            {"query": "Bank of America"},
        ),
        ("find the invoice of O'Neil", "find_invoice", {"query": "O'Neil"}),
        ("find 3 invoices from Acme", "find_invoice", {"query": "Acme", "limit": 3}),
        (
            "refund 20 EUR of PAY-7",
            "refund_payment",
            {"payment_id": "PAY-7", "amount": 20, "currency": "EUR"},
        ),
        (
            "refund $19.90 of payment PAY-7",
            "refund_payment",
            {"payment_id": "PAY-7", "amount": 19.9},
        ),
        ("show me a sales chart", "sales_chart", {}),
        ("chart of last week", "sales_chart", {"period": "week"}),
        ("book a table for 4 tomorrow", "book_table", {"day": "2026-03-02", "guests": 4}),
        ("book a table on 2026-05-01 for 2", "book_table", {"day": "2026-05-01", "guests": 2}),
        ("/delete_invoice invoice_id=INV-42", "delete_invoice", {"invoice_id": "INV-42"}),
        (
            "/find_invoice query='two words' limit=2",
            "find_invoice",
            {"query": "two words", "limit": 2},
        ),
        ("/find_invoice@my_bot O'Neil", "find_invoice", {"query": "O'Neil"}),
        (
            "/book_table day=2026-05-01 guests=2 outside=yes",
            "book_table",
            {"day": "2026-05-01", "guests": 2, "outside": True},
        ),
    ],
)
def test_text_is_matched_to_tool_and_arguments(text, name, args):
    """Free text and commands lead to the same calls, with valid arguments."""
    assert called(text) == [(name, args)]
    next(each for each in TOOLS if each.name == name).validate(args)


def test_one_part_of_the_text_fills_one_parameter():
    """The number for the amount is not used for the id."""
    assert called("refund 20") == (
        "refund_payment needs payment_id. For example: /refund_payment payment_id=PAY-42 amount=20"
    )


def test_missing_argument_is_requested():
    """The reply has a command to copy."""
    expected = "delete_invoice needs invoice_id. For example: /delete_invoice invoice_id=INV-42"
    assert called("delete the big invoice") == expected
    assert called("/delete_invoice") == expected


def test_ambiguous_text_is_answered_with_a_question():
    """A word that several tools share decides nothing, whatever their descriptions contain."""
    expected = "Did you mean /delete_invoice or /find_invoice?"
    assert called("invoice INV-42") == expected
    assert called("look up invoice INV-42") == expected


def test_help_says_that_there_is_no_model():
    """Every tool comes with an example."""
    text = called("/help")
    assert "not a language model" in text
    assert "/delete_invoice invoice_id=INV-42 - Delete an invoice for good." in text
    assert called("/start") == text


def test_unknown_command_calls_no_tool():
    """A similar name is not a command."""
    assert (
        called("/delete_invoices INV-42")
        == "There is no command /delete_invoices. /help lists them all."
    )


def test_results_are_put_into_words():
    """Typed results become sentences, text is unchanged, and several results are joined."""
    assert told(NotFound("invoice", "x").to_json()) == 'I found no invoice for "x".'
    ambiguous = Ambiguous("company", "x", [{"id": "A"}, "B"]).to_json()
    assert told(ambiguous) == 'Several companies match "x": ID A; B: which one?'
    assert (
        told("deleted INV-42", '{"total": 3, "paid": true}')
        == "deleted INV-42\nTotal: 3\nPaid: yes"
    )


def test_earlier_results_are_not_repeated():
    """Only results since the last user message are in the reply."""
    messages = [Message(Role.TOOL, "old"), Message(Role.USER, "go"), Message(Role.TOOL, "new")]
    assert answer(messages).content == "new"


def test_media_are_listed():
    """Each has its kind, type, size and name, as far as known."""
    photo = Media("r", "image/jpeg", "photo.jpg", 123456)
    nameless = Media("r", "image/jpeg", size=123456, stored=True)
    voice = Media("r", "audio/ogg")
    message = Message(Role.USER, "look", media=(photo, nameless, voice))
    assert answer([message], []).content.splitlines() == [
        "You said: look",
        "[image image/jpeg 123456 bytes photo.jpg]",
        "[image image/jpeg 123456 bytes]",
        "[audio audio/ogg]",
    ]


def test_calls_have_ids():
    """An id links a result to its call."""
    assert answer("delete invoice INV-42").tool_calls[0].id == "call_1"


def test_misspelled_argument_is_named_beside_the_missing_one():
    """The person sees what was not understood."""
    expected = "delete_invoice needs invoice_id, and has no 'invoice'. For example: /delete_invoice invoice_id=INV-42"
    assert called("/delete_invoice invoice=INV-42") == expected


@tool
def remind_me(text: str, when: str) -> str:
    """Remind the user of something later."""
    return text


@pytest.mark.parametrize(
    ("text", "what", "when"),
    [
        ("remind me tomorrow at 9 to call Bob", "call Bob", "tomorrow at 9"),
        ("Remind me in 20 minutes to stretch", "stretch", "in 20 minutes"),
        (
            "remind me to water the plants on Friday at 14:30",
            "water the plants",
            "on Friday at 14:30",
        ),
        ("remind me at 5 pm tomorrow: tea", "tea", "at 5 pm tomorrow"),
        ("remind me of 'in 3 days' in an hour", "in 3 days", "in an hour"),
        ("remind me 2026-12-24T18:00 about presents", "presents", "2026-12-24T18:00"),
    ],
)
def test_time_expression_is_one_argument(text, what, when):
    """The words of the time are taken together and removed from the rest of the text."""
    (call,) = answer(text, [remind_me.schema()]).tool_calls
    assert call.parameters == {"text": what, "when": when}


def test_missing_time_is_requested():
    """The task itself is not mistaken for a time."""
    assert "needs when" in answer("remind me to stretch", [remind_me.schema()]).content


def named(name: str, description: str = "A tool."):
    """Return the schema of a tool that takes nothing."""
    return {"name": name, "description": description, "parameters": {"properties": {}}}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("find invoice", "find_invoice"),
        ("find invoice 7 with its lines", "find_invoice"),
        ("find invoice lines", "find_invoice_lines"),
        ("list task", "list_task"),
        ("list tasks", "list_tasks"),
        ("tasks list", "tasks_list"),
        ("clear all tasks", "clear_all_tasks"),
        ("delete the task of the shopping list", "delete_task"),
        ("delete my list now", "delete_list_entry"),
        ("list", "list"),
        ("list 5 please", "list"),
    ],
)
def test_exact_words_of_a_name_win(text, name):
    """Whatever other names share with them, and whatever a description adds.

    One word must be all that is said.
    """
    tools = [
        named("find_invoice"), named("find_invoice_lines", "Find the lines of all invoices."), named("list"),
        named("list_task"), named("list_tasks"), named("tasks_list"), named("clear_all_tasks"), named("clear_tasks"),
        named("delete_task"), named("delete_list_entry"), named("delete_shopping_task", "Of the shopping list."),
    ]  # fmt: skip
    calls = answer(text, tools).tool_calls
    assert [call.tool_name for call in calls] == [name]


@pytest.mark.parametrize(
    "text", ["delete invoice INV-42", "delete INV-42, please", "/delete_invoice INV-42"]
)
@pytest.mark.parametrize("how", ["policy", "role"])
def test_request_for_a_denied_tool_is_refused_and_starts_no_other_one(text, how):
    """A tool that shares a word with it is no replacement."""
    ran = []

    @tool
    def list_invoices() -> str:
        """List invoices."""
        ran.append("list")
        return "none"

    policy = ToolPolicy(allow=["*"], deny=["delete_*"] if how == "policy" else [])
    selector = RoleBasedSelector("guest", allowed={"guest": ["list_*"]}) if how == "role" else None
    tools = [delete_invoice, list_invoices]
    config = AgentConfig(tool_policy=policy)
    agent = Agent(tools, OfflineProvider(), config, selector=selector)
    assert (agent.run(text).content, ran) == ("That is not allowed here. /help says what is.", [])
    assert agent.run("list invoices").content == "none"


def test_tool_does_not_run_for_a_text_that_may_mean_a_denied_one():
    """ "Remove" is a word of one tool, and "account" of the other. The denied one is not named."""
    delete_account = named("delete_account")
    remove_note = named("remove_note")

    async def hidden_tools():
        return [delete_account]

    matcher = OfflineProvider().with_hidden_tools(hidden_tools)
    messages = [Message(Role.USER, "remove my account")]
    said, _ = asyncio.run(
        matcher.acomplete(model="", system_prompt="", messages=messages, tools=[remove_note])
    )
    assert (said.content, said.tool_calls) == ("Did you mean /remove_note?", ())


@pytest.mark.parametrize(
    ("text", "issue"),
    [
        ("/find_invoice query=a limit=many", "'limit' is 'many': Input should be a valid integer"),
        ("/find_invoice query=a colour=red", "Unexpected parameter(s): 'colour'"),
        ("/sales_chart period=year", "'period' is 'year': Input should be 'week' or 'month'"),
        ("/sales_chart year", "'year' has no name; write period=..."),
        (
            "/find_invoice query=a many of them",
            "'many of them' has no name; write query=... or limit=...",
        ),
    ],
)
def test_wrong_arguments_of_a_command_are_told_in_one_plain_line(text, issue):
    """The block with its border and its suggestion is for models."""
    reply = Agent(list(TOOLS), OfflineProvider()).run(text).content
    name = text[1:].split()[0]
    assert reply.startswith(f"{name} cannot run like this: {issue}")
    assert ". For example: /" in reply
    assert [part for part in ("=====", "\n", "Suggestion") if part in reply] == []
