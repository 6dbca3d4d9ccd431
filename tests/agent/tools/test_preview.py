"""Preview: a person reads all that runs, and nothing in an argument hides a part of it."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from datetime import date
from enum import Enum
from functools import partial
from pathlib import PurePosixPath
from typing import Annotated, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from sayso.agent import CheckedPreview, Tool, ToolError, ToolValidationError, tool
from sayso.agent.tools.previews import check_preview, literal, preview_text
from sayso.channels.markdown.convert import plain, slack_mrkdwn, telegram_html, whatsapp_text
from sayso.channels.markdown.split import split
from sayso.pending.call_context import ChannelRun, context_field

#: What people and models write to hide something, each of which some platform would not show as it is.
TRICKS = (
    "[click](https://evil.example)", "![x](https://evil.example)", "~~~ wire it all", "**bold**", "__init__", "a\\*b",
    "&#x41;", "# title #", "`code`", "```py", "<https://evil.example>", "> quote", "1. first", "---", "* * *", "a * b",
    "~~gone~~", "[a]: https://evil.example", "*", "_", "\\", "2*3*4", "x_y_z", "C:\\dir\\*", "&amp;", "===", "- x",
    "+ x",
)  # fmt: skip
TEXTS = st.lists(
    st.sampled_from(TRICKS) | st.sampled_from(list("ab 1*_`[]()\\~<>&#;!+-=.|\"'é文")), max_size=8
).map("".join)


def shown(md: str) -> str:
    """What Telegram shows of it: formatting is gone, and so is what it hides."""
    return html.unescape(re.sub(r"<[^>]*>", "", telegram_html(md)))


def one_line(text: str) -> str:
    """The text, as it stands in a preview."""
    return " ".join(text.split())


@given(TEXTS, TEXTS)
@example("**a", "b**")
@example("[click", "](https://evil.example)")
@example("a\\", "*b*")
def test_arguments_are_shown_character_by_character(first, second):
    """On each platform; also where two arguments together would make a link or a pair of stars."""
    words = preview_text("send", "Send {a}, {b}", {"a": first, "b": second})
    expected = one_line(f"Send {one_line(first)}, {one_line(second)}")
    assert one_line(plain(words)) == expected
    assert one_line(shown(words)) == expected


@given(st.lists(TEXTS, min_size=1, max_size=9).map(" ".join), st.integers(0, 60))
def test_question_in_several_messages_shows_every_character(text, before):
    """Wherever it is cut: nothing becomes a link, a list or nothing there."""
    words = preview_text("send", "Send {a}", {"a": "y" * before + text})
    pieces = split(words, 60)
    assert "".join("".join(map(plain, pieces)).split()) == "".join(plain(words).split())
    assert "".join("".join(map(shown, pieces)).split()) == "".join(shown(words).split())


@given(TEXTS.filter(str.strip))
def test_argument_that_begins_a_line_is_shown_too(text):
    """Where a heading, a quote or a fence would begin."""
    words = preview_text("send", "{a}\nto Ana", {"a": text})
    assert one_line(plain(words)) == one_line(f"{text} to Ana")


@pytest.mark.parametrize("trick", TRICKS)
@pytest.mark.parametrize(
    "look", [shown, plain, whatsapp_text, lambda md: html.unescape(slack_mrkdwn(md))]
)
def test_no_platform_hides_a_letter(look, trick):
    """A platform may format the text, but every letter stays."""
    assert re.sub(r"\W", "", trick) in re.sub(r"\W", "", look(literal(trick)))


@pytest.mark.parametrize(
    "text", ["INV-42", "my_file.txt", "2 * 3", "+49 123", "-5", "a@b.org", "R&D", "x < y", "50 %"]
)
def test_ordinary_words_stay_as_they_are(text):
    """They get no backslashes."""
    assert literal(text) == text


def test_argument_cannot_pass_for_another():
    """Where its end would not be seen it stands in quotes, and an empty one is seen."""
    words = preview_text("pay", None, {"to": "bob, euros = 5", "euros": 500, "note": ""})
    assert words == 'pay: to = "bob, euros = 5", euros = 500, note = ""'
    assert preview_text("pay", None, {"to": 'b"'}) == r'pay: to = "b\\""'


def test_path_cannot_pass_for_another_argument():
    """A model writes the text of any value, not only of a str."""
    args = {"path": PurePosixPath("a, all = False"), "all": True, "days": [1, 2]}
    assert (
        preview_text("erase", None, args) == r'erase: path = "a, all = False", all = True, '
        r"days = \[1, 2\]"
    )


def test_checked_values_in_another_order_are_others():
    """Only a set and a dict have no order. A model's set looks like a list in JSON."""

    class Rates(BaseModel):
        days: set[str]

    def digest(values: Any) -> str:
        return CheckedPreview("Pay", values).digest

    assert digest([100, 50]) != digest([50, 100])
    assert digest({"pay": (100, [1, 2])}) != digest({"pay": (100, [2, 1])})
    assert digest([{"b", "a"}, {"x": 1, "y": 2}]) == digest([{"a", "b"}, {"y": 2, "x": 1}])
    assert digest(Rates(days={"mo", "tu"})) == digest(Rates(days={"tu", "mo"}))


def test_error_of_a_preview_names_the_type_of_its_value():
    """The value itself may be secret, and errors are logged."""
    with pytest.raises(TypeError, match="type dict: return text") as caught:
        preview_text("pay", lambda **_: {"password": "hunter2"}, {})
    assert "hunter2" not in str(caught.value)


def test_space_that_makes_a_difference_is_seen():
    """Two files may differ by nothing else; a page would show many as one."""
    assert preview_text("erase", None, {"name": "a ", "to": "b"}) == 'erase: name = "a ", to = b'
    assert preview_text("erase", None, {"name": "a   b"}) == 'erase: name = "a \u00a0\u00a0b"'
    assert preview_text("erase", "Erase {name}?", {"name": "a  b"}) == "Erase a \u00a0b?"


def test_gap_that_would_push_the_rest_out_of_sight_is_counted():
    """The person sees what comes after it, in a list of arguments and in a template."""
    name = "notes.txt" + "\u00a0" * 3000 + "and all others"
    assert (
        preview_text("erase", None, {"name": name})
        == 'erase: name = "notes.txt⟨3000 ␣⟩and all others"'
    )
    assert (
        preview_text("erase", "Erase {name}?", {"name": name})
        == "Erase notes.txt⟨3000 ␣⟩and all others?"
    )


def test_lookalike_letters_are_shown_by_their_codes():
    """An address with one Cyrillic letter is that of another person."""
    assert (
        preview_text("pay", "Pay {to}", {"to": "ada@p\u0430ypal.com"})
        == "Pay ada@p⟨U+0430⟩ypal.com"
    )
    assert (
        preview_text("erase", None, {"name": "a\U00013430b\U0001d159"})
        == "erase: name = a⟨U+13430⟩b⟨U+1D159⟩"
    )


def test_invisible_characters_are_shown_by_their_codes():
    """In a template, in a list of arguments, in nested values, and in the result of a preview function."""
    args = {"name": "in\u200bvoice", "more": ["\u202eb"]}
    assert (
        preview_text("erase", "Erase {name}, {more[0]}?", args)
        == "Erase in⟨U+200B⟩voice, ⟨U+202E⟩b?"
    )
    assert (
        preview_text("erase", None, args)
        == 'erase: name = in⟨U+200B⟩voice, more = \\["⟨U+202E⟩b"\\]'
    )

    @tool(requires_approval=True, preview=lambda name: f"Erase {name}?")
    def erase(name: str) -> str:
        """Erase."""
        return name

    assert propose(erase, {"name": "in\u200bvoice"}).preview == "Erase in⟨U+200B⟩voice?"


def test_name_of_an_argument_cannot_pass_for_others():
    """A schema may let the model make names up."""
    args = {"to = bob, euros": 5.00, "memo": "rent"}
    assert preview_text("pay", None, args) == 'pay: "to = bob, euros" = 5.0, memo = rent'


@pytest.mark.parametrize(
    "template",
    ["Delete `{a}`", "[{a}](https://x.org)", "[x](mailto:{a})", "```\n{a}\n```", "~~~\n{a}"],
)
def test_argument_inside_code_or_a_link_is_refused(template):
    """Nothing can be made harmless there: a backtick closes the code, a bracket the link."""
    with pytest.raises(ToolError, match="inside code or a link"):
        tool(name="f", preview=template)(lambda a: a)


def test_preview_that_would_fail_at_each_call_is_refused_when_it_is_defined():
    """An argument as a width could also hide a part of another argument."""

    def by_position(a: str, /, **_: Any) -> str:
        return a

    with pytest.raises(ToolValidationError, match=r"takes \['a'\] by position only"):
        check_preview("send", by_position, ["a"])
    for template in ("Send {a:{b}}", "Send {a:.{a}}"):
        with pytest.raises(ToolValidationError, match="inside a format: write the format out"):
            check_preview("send", template, ["a"])
    check_preview("send", "Send {a:>8.2f}", ["a"])


@pytest.mark.parametrize(
    "template", ["`delete` {a}", "[docs](https://x.org) {a}", "`x` {a} `y`", "```\ncode\n```\n{a}"]
)
def test_code_and_links_beside_arguments_are_fine(template):
    """They are the author's."""
    assert tool(name="f", preview=template)(lambda a: a).preview == template


class Colour(Enum):
    """A choice."""

    RED = "red"


class Address(BaseModel):
    """A part of an argument; one that its author left out of its text."""

    street: str
    note: Annotated[str, Field(repr=False)] = ""


@dataclass
class Item:
    """Another part."""

    what: str
    count: int = 1


def test_what_holds_others_is_shown_whole():
    """As the JSON that is stored: its own text might leave parts out."""
    args: dict[str, Any] = {
        "to": Address(street="Main *St*", note="n"), "items": [Item("a")], "colour": Colour.RED, "on": date(2026, 1, 2),
    }  # fmt: skip
    assert preview_text("ship", None, args) == (
        r'ship: to = {"street": "Main \*St\*", "note": "n"}, items = \[{"what": "a", "count": 1}\], '
        "colour = red, on = 2026-01-02"
    )
    assert preview_text("ship", "{to.street} {items[0].what} {on:%d.%m.%Y} {colour}", args) == (
        r"Main \*St\* a 02.01.2026 red"
    )


def test_attribute_of_an_argument_begins_no_line_of_its_own():
    """A line break in it could pass for a further step."""
    args = {"to": Address(street="Main St\n2. Delete all")}
    assert preview_text("ship", "Ship to {to.street}", args) == "Ship to Main St ⏎ 2. Delete all"


def test_none_is_left_out_only_where_it_is_the_default():
    """`limit=None` in place of 10 changes what is done, so the user sees it."""

    @tool(requires_approval=True)
    def wipe(limit: int | None = 10, note: str | None = None) -> str:
        """Wipe so many."""
        return "wiped"

    assert propose(wipe, {"limit": None}).preview == "wipe: limit = None"
    assert propose(wipe, {}).preview == "wipe: limit = 10"


def propose(proposed: Tool, args: dict[str, Any]):
    """What is sealed of a call under review."""
    with context_field("run", ChannelRun("ana", "web", "1", 60.0, "test")) as run:
        proposed.propose(args)
    return run.proposals[0]


@tool
def send(to: str, body: str) -> str:
    """Send a letter, without a word about previews."""
    return f"sent to {to}: {body}"


def test_long_arguments_are_sealed_and_shown_whole():
    """5,000 characters: nothing is cut, neither in the words nor in the arguments."""
    body = "".join(f"{number} " for number in range(1250))
    action = propose(send, {"to": "ana", "body": body})
    assert len(body) > 4_990
    assert action.preview == f'send: to = ana, body = "{body}"'
    assert action.args == {"to": "ana", "body": body}


def test_more_than_a_person_reads_is_refused_and_not_cut():
    """The model hears why, and can do less at once."""
    with pytest.raises(
        ToolError, match=r"the preview has 20,\d{3} characters: shorten it to at most 16,000"
    ):
        propose(send, {"to": "ana", "body": "x" * 20_000})


async def later(to: str, body: str) -> str:
    """Return a preview after a while."""
    return to


def in_parts(to: str, body: str) -> Iterator[str]:
    """Yield a preview in parts."""
    yield to


async def later_in_parts(to: str, body: str) -> AsyncIterator[str]:
    """Yield a preview in parts, after a while."""
    yield to


class Later:
    """An object whose call is async."""

    __call__ = staticmethod(later)


@pytest.mark.parametrize("preview", [later, partial(later), in_parts, later_in_parts, Later()])
def test_preview_whose_call_gives_no_text_is_refused_when_it_is_defined(preview: Any):
    """It would fail in front of the user."""
    with pytest.raises(
        ToolValidationError, match="preview of 'send' is async or yields: give a plain function"
    ):
        replace(send, preview=preview)
