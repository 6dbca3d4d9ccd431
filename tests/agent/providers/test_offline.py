"""OfflineProvider: finds the tool that was meant, asks when it cannot, and never pretends."""

import asyncio
import json
from datetime import date
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sayso.agent import Ambiguous, Message, NotFound, OfflineProvider, Role, tool
from sayso.channels.types import Media


@tool
def delete_invoice(invoice_id: str) -> str:
    """Delete an invoice for good."""
    return invoice_id


@tool
def find_invoice(query: str, limit: int = 10) -> str:
    """Look an invoice up."""
    return query


@tool
def refund_payment(payment_id: str, amount: float, currency: str = "EUR") -> str:
    """Pay money back."""
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
    """What the provider says to a transcript, or to one text."""
    if isinstance(messages, str):
        messages = [Message(Role.USER, messages)]
    provider = OfflineProvider(today=lambda: date(2026, 3, 1))
    message, _ = asyncio.run(
        provider.acomplete(model="m", system_prompt="", messages=messages, tools=schemas, temperature=0, max_tokens=9)
    )
    return message


def called(text):
    """The calls a text comes to, else the words."""
    message = answer(text)
    return [(call.tool_name, call.parameters) for call in message.tool_calls] or message.content


def told(*results):
    """What the provider makes of tool results."""
    return answer([Message(Role.USER, "go"), *(Message(Role.TOOL, result) for result in results)]).content


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
def test_chit_chat_calls_nothing(text):
    """Small talk, a bare yes and quoted words are echoed, never acted on; then the person reads what works."""
    echo, _, told = called(text).partition("\n")
    assert echo == f"You said: {text}".rstrip()
    assert "I am not a language model" in told
    assert "I can delete invoice, find invoice, refund payment, sales chart and book table" in told
    assert told.endswith("For example: /delete_invoice invoice_id=INV-42")


def test_no_more_tools_are_named_than_anybody_reads():
    """A bot may have a hundred."""
    many = [{**SCHEMAS[0], "name": f"tool_{number}"} for number in range(50)]
    assert "tool 11 and 38 more. For example" in answer("hello", many).content
    assert answer("hello", []).content == "You said: hello"


def test_several_things_in_one_text_are_one_call_each():
    """A plan, where the tool asks: only where nothing but an identifier is needed, which nobody can mix up."""
    calls = answer("delete INV-42, INV-47 and INV-55, please, and INV-42").tool_calls
    assert [call.parameters for call in calls] == [{"invoice_id": f"INV-{number}"} for number in (42, 47, 55)]
    assert len({call.id for call in calls}) == 3
    assert len(answer("refund 20 of PAY-1 and 30 of PAY-2").tool_calls) <= 1


@pytest.mark.parametrize("text", ["don't delete invoice INV-42", "do not delete INV-42", "Never delete invoices"])
def test_what_is_forbidden_is_not_done(text):
    """A negation holds all the words of the request: it must not be mistaken for it."""
    assert called(text).startswith(f"You said: {text}\n")


@given(st.text(max_size=80))
def test_no_text_crashes_it(text):
    """Any text, also as a command or behind a tool's name, has an answer, twice the same."""
    for said in (text, f"/{text}", f"delete invoice {text}", f"/book_table {text}", f"refund payment {text}"):
        assert answer(said) == answer(said)
        assert answer(said).content or answer(said).tool_calls
    assert isinstance(told(text), str)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda x: st.lists(x, max_size=3) | st.dictionaries(st.sampled_from(["kind", "matches", "a"]), x, max_size=3),
        max_leaves=8,
    )
)
def test_no_result_crashes_it(value):
    """Any JSON a tool returns is told in words."""
    assert isinstance(told(json.dumps(value)), str)


@pytest.mark.parametrize(
    ("text", "name", "args"),
    [
        ("delete invoice INV-42", "delete_invoice", {"invoice_id": "INV-42"}),
        ("please delete the invoice INV-42", "delete_invoice", {"invoice_id": "INV-42"}),
        ("Deleting invoices 42", "delete_invoice", {"invoice_id": "42"}),
        ('delete invoice "A 7"', "delete_invoice", {"invoice_id": "A 7"}),
        ("delete invoice invoice_id=X", "delete_invoice", {"invoice_id": "X"}),
        ("find the invoice of Bank of America please", "find_invoice", {"query": "Bank of America"}),
        ("find the invoice of O'Neil", "find_invoice", {"query": "O'Neil"}),
        ("find 3 invoices from Acme", "find_invoice", {"query": "Acme", "limit": 3}),
        ("refund 20 EUR of PAY-7", "refund_payment", {"payment_id": "PAY-7", "amount": 20, "currency": "EUR"}),
        ("refund $19.90 of payment PAY-7", "refund_payment", {"payment_id": "PAY-7", "amount": 19.9}),
        ("show me a sales chart", "sales_chart", {}),
        ("chart of last week", "sales_chart", {"period": "week"}),
        ("book a table for 4 tomorrow", "book_table", {"day": "2026-03-02", "guests": 4}),
        ("book a table on 2026-05-01 for 2", "book_table", {"day": "2026-05-01", "guests": 2}),
        ("/delete_invoice invoice_id=INV-42", "delete_invoice", {"invoice_id": "INV-42"}),
        ("/find_invoice query='two words' limit=2", "find_invoice", {"query": "two words", "limit": 2}),
        ("/find_invoice@my_bot O'Neil", "find_invoice", {"query": "O'Neil"}),
        (
            "/book_table day=2026-05-01 guests=2 outside=yes",
            "book_table",
            {"day": "2026-05-01", "guests": 2, "outside": True},
        ),
    ],
)
def test_meaning_finds_tool_and_arguments(text, name, args):
    """Free words and commands come to the same calls, with arguments the tool accepts."""
    assert called(text) == [(name, args)]
    next(each for each in TOOLS if each.name == name).validate(args)


def test_one_piece_of_text_fills_one_parameter():
    """The number that is the amount is not also the id."""
    assert called("refund 20") == (
        "refund_payment needs payment_id. For example: /refund_payment payment_id=PAY-42 amount=20"
    )


def test_missing_argument_is_asked_for():
    """With a command to copy."""
    expected = "delete_invoice needs invoice_id. For example: /delete_invoice invoice_id=INV-42"
    assert called("delete the big invoice") == expected
    assert called("/delete_invoice") == expected


def test_tie_asks_which():
    """A word that several tools share decides nothing, whatever their descriptions say."""
    expected = "Did you mean /delete_invoice or /find_invoice?"
    assert called("invoice INV-42") == expected
    assert called("look up invoice INV-42") == expected


def test_help_is_honest():
    """It says what it is, and every tool comes with an example."""
    text = called("/help")
    assert "not a language model" in text
    assert "/delete_invoice invoice_id=INV-42 - Delete an invoice for good." in text
    assert called("/start") == text


def test_unknown_command_calls_nothing():
    """A near miss is no command."""
    assert called("/delete_invoices INV-42") == "There is no command /delete_invoices. /help lists them all."


def test_results_are_told_in_words():
    """Typed results become sentences, text stays, several are joined."""
    assert told(NotFound("invoice", "x").to_json()) == 'I found no invoice for "x".'
    ambiguous = Ambiguous("company", "x", [{"id": "A"}, "B"]).to_json()
    assert told(ambiguous) == 'Several companies match "x": id A; B: which one?'
    assert told("deleted INV-42", '{"total": 3, "paid": true}') == "deleted INV-42\ntotal: 3\npaid: yes"


def test_earlier_results_are_not_told_again():
    """Only what came since the user last spoke."""
    messages = [Message(Role.TOOL, "old"), Message(Role.USER, "go"), Message(Role.TOOL, "new")]
    assert answer(messages).content == "new"


def test_media_are_listed():
    """Kind, type, size and name, as far as the platform told."""
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
    """A result can be tied to its call."""
    assert answer("delete invoice INV-42").tool_calls[0].id == "call_1"


@tool
def remind_me(text: str, when: str) -> str:
    """Remind the user of something later."""
    return text


@pytest.mark.parametrize(
    ("text", "what", "when"),
    [
        ("remind me tomorrow at 9 to call Bob", "call Bob", "tomorrow at 9"),
        ("Remind me in 20 minutes to stretch", "stretch", "in 20 minutes"),
        ("remind me to water the plants on Friday at 14:30", "water the plants", "on Friday at 14:30"),
        ("remind me at 5 pm tomorrow: tea", "tea", "at 5 pm tomorrow"),
        ("remind me of 'in 3 days' in an hour", "in 3 days", "in an hour"),
        ("remind me 2026-12-24T18:00 about presents", "presents", "2026-12-24T18:00"),
    ],
)
def test_moment_is_one_argument(text, what, when):
    """The words that say when are taken together, and are no part of what is left."""
    (call,) = answer(text, [remind_me.schema()]).tool_calls
    assert call.parameters == {"text": what, "when": when}


def test_moment_that_is_not_said_is_asked_for():
    """What is to be done is no time."""
    assert "needs when" in answer("remind me to stretch", [remind_me.schema()]).content
