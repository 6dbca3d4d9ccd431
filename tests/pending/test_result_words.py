"""Results of APIs and MCP servers as people read them: never raw JSON, HTML, XML or base64, whatever its form."""

from __future__ import annotations

import base64
import json
import random

import pytest

from sayso.agent.tools.errors import ToolError
from sayso.pending.markup_words import MAX_ELEMENT_DEPTH, document_value, page_lines
from sayso.pending.result_words import (
    MAX_PAGE_LINES,
    effect_in_words,
    result_in_words,
    words_for_person,
)

ORDER = {"id": 17, "status": "refunded"}
WORDS = "ID: 17\nStatus: refunded"
BYTES = random.Random(7).randbytes(1800)
PAGE = (
    "<!DOCTYPE html><html><head><title>502 Bad Gateway</title><style>h1 {color: red}</style></head>"
    '<body><!-- {"a": 1} --><h1>502 Bad <b>Gateway</b></h1><script>var a = {"x": 1}</script>'
    "<p>n&amp;n</p></body></html>"
)
SOAP = (
    '<?xml version="1.0"?><s:Envelope xmlns:s="urn:s"><s:Body><order id="17"><status>refunded</status>'
    '<amount currency="EUR">20</amount><line sku="A"/><line sku="B"/><note><![CDATA[a < b & c]]></note></order>'
    "</s:Body></s:Envelope>"
)
#: An answer as it comes, and what people read of it.
RESULTS = {
    "JSON in JSON": (json.dumps({"result": json.dumps(ORDER)}), f"Result:\n{WORDS}"),
    "JSON as a text": (json.dumps(json.dumps(ORDER)), WORDS),
    "MCP content": (
        json.dumps({"content": [{"type": "text", "text": json.dumps(ORDER)}]}),
        "Content: type text, text (ID 17, status refunded)",
    ),
    "byte order mark": (f"\ufeff{json.dumps(ORDER)}", WORDS),
    "guard against browsers": (f")]}}',\n{json.dumps(ORDER)}", WORDS),
    "row by row": ('{"id": 1, "name": "a"}\n{"id": 2, "name": "b"}\n', "- a (ID 1)\n- b (ID 2)"),
    "one behind the other": ('{"a": 1}{"b": 2}', "A: 1\nB: 2"),
    "events": (
        f"data: {json.dumps(ORDER)}\n\ndata: [DONE]",
        "data: ID 17, status refunded\n\ndata: [DONE]",
    ),
    "behind a label": (f"Created: {json.dumps(ORDER)}", "Created: ID 17, status refunded"),
    "below a text": (f"Refunded.\n{json.dumps(ORDER)}", f"Refunded.\n{WORDS}"),
    "block of code": (
        f"Result:\n```json\n{json.dumps(ORDER, indent=2)}\n```\nDone.",
        f"Result:\n{WORDS}\nDone.",
    ),
    "printed by Python": (str(ORDER), WORDS),
    "cut for a model": (
        json.dumps({**ORDER, "lines": [{"sku": "A"}, {"sku": "B"}]})[:-8]
        + "\n[... 50 of 900 characters are shown: the first 40 and the last 10 ...]\nrest",
        f"{WORDS}\nLines: SKU A\n[…]",
    ),
    "HTML": (PAGE, "502 Bad Gateway\nn&n"),
    "HTML as JSON": (json.dumps(PAGE), "502 Bad Gateway\nn&n"),
    "HTML behind a text": (f"The proxy said:\n{PAGE}", "The proxy said:\n502 Bad Gateway\nn&n"),
    "part of a page": (
        "<p>Your order <b>17</b></p><p>was refunded.</p>",
        "Your order 17\nwas refunded.",
    ),
    "XML": (
        SOAP,
        "Envelope:\nBody:\nOrder:\nID: 17\nStatus: refunded\nAmount: value 20, currency EUR\nLine: SKU A, SKU B\n"
        "Note: a < b & c",
    ),
    "base64": (base64.b64encode(BYTES).decode(), "(binary data, 1800 bytes, is left out)"),
    "data address": (
        f"Here: data:application/pdf;base64,{base64.b64encode(BYTES).decode()}",
        "Here: (binary data, 1800 bytes, is left out)",
    ),
    "binary": ("\x00\x01PNG\ufffd\ufffd", "(binary data, 11 bytes, is left out)"),
}


@pytest.mark.parametrize("name", RESULTS)
def test_answer_of_another_system_is_read_in_words(name: str):
    """Both of a call that ran at once and of one that a person has confirmed."""
    answer, words = RESULTS[name]
    assert result_in_words(answer) == effect_in_words(answer) == words


@pytest.mark.parametrize(
    "text",
    [
        "a < b and c > d",
        "<foo> is a tag",
        'const a = {"x": 1};',
        'see {"x": 1} above',
        '```\n{"an": "example"}\n```',
        '```python\nx = {"a": 1}\n```',
        'Result:\n```json\n{"cut": ',
        "[done] 3 of 4",
        "{name}",
        "['a', 'b']",
        "x" * 3000,
        f"ssh-rsa {base64.b64encode(BYTES[:500]).decode()}",
        "name: value\nother: 5",
    ],
)
def test_other_text_stays(text: str):
    """What only looks like markup or JSON, code, and keys that a person may want."""
    assert result_in_words(text) == text


def test_error_quotes_what_a_page_says():
    """A proxy answers with a page where the API is away; only its beginning is quoted."""
    error = ToolError(f"shop answered 502 (Bad Gateway) to POST /refunds: {PAGE}")
    told = "shop answered 502 (Bad Gateway) to POST /refunds: 502 Bad Gateway n&n"
    assert words_for_person(error) == told
    long_page = PAGE.replace("n&amp;n", "word " * 500)
    assert len(words_for_person(ToolError(long_page))) < 250


def test_problem_of_an_api_is_quoted_in_words():
    """RFC 9457, as many APIs describe an error."""
    problem = {
        "title": "Not enough credit.",
        "detail": "It costs 50.",
        "status": 403,
        "instance": "/accounts/7",
    }
    assert words_for_person(
        ToolError(f"shop answered 403 (Forbidden) to POST /pay: {json.dumps(problem)}")
    ) == (
        "shop answered 403 (Forbidden) to POST /pay: "
        "Not enough credit. (detail It costs 50., status 403, instance /accounts/7)"
    )


def test_long_page_is_told_up_to_its_first_lines():
    """People do not read more of it in a chat."""
    page = f"<html><body>{''.join(f'<p>line {number}</p>' for number in range(100))}</body></html>"
    *lines, last = result_in_words(page).split("\n")
    assert (len(lines), last) == (MAX_PAGE_LINES, f"and {100 - MAX_PAGE_LINES} more lines")


def test_unclosed_and_deep_elements_end_with_those_around_them():
    """No document makes the work fail."""
    assert document_value("<a><b>x<c>y</a>") == {"a": {"b": {"value": "x", "c": "y"}}}
    deep = document_value("<a>" * 5000 + "x" + "</a>" * 5000)
    for _ in range(MAX_ELEMENT_DEPTH):
        deep = deep["a"]
    assert deep == "x"


def test_closing_tag_without_a_name_closes_nothing():
    """An answer of another system may hold any text."""
    assert document_value("<a><b>x</></b></>y</a>") == {"a": {"b": "x", "value": "y"}}


def test_script_is_skipped_behind_letters_that_are_longer_in_small():
    """The small letter of "İ" is two characters, which must not shift where the script ends."""
    page = "<html><body><p>İİ</p><SCRIPT>if (a < b) run()</Script><p>rest</p></body></html>"
    assert page_lines(page) == ["İİ", "rest"]


def test_unseen_element_without_content_hides_nothing_behind_it():
    """In XML such a name may be that of any field."""
    assert document_value('<a><template id="1"/><b>x</b></a>') == {
        "a": {"template": {"id": "1"}, "b": "x"}
    }
