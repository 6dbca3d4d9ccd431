"""Answers of APIs as people read them: labels, names and pages stay. What only programs read is named as left out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sayso.pending.executors import Ambiguous
from sayso.pending.json_words import MAX_ROWS, label_of
from sayso.pending.result_words import result_in_words

API = "https://api.github.com/repos/octocat/Hello-World"
PAGE = "https://github.com/octocat/Hello-World"
OCTOCAT = {
    "login": "octocat",
    "id": 1,
    "node_id": "MDQ6VXNlcjE=",
    "avatar_url": "https://github.com/images/error/octocat_happy.gif",
    "gravatar_id": "",
    "url": "https://api.github.com/users/octocat",
    "html_url": "https://github.com/octocat",
    "following_url": "https://api.github.com/users/octocat/following{/other_user}",
    "type": "User",
    "site_admin": False,
}
BUG = {
    "id": 208045946,
    "node_id": "MDU6TGFi",
    "url": f"{API}/labels/bug",
    "name": "bug",
    "default": True,
}
#: Answers of APIs as they come, with fewer fields of each kind.
ISSUE = {
    "id": 1296269,
    "node_id": "MDU6SXNzdWUx",
    "url": f"{API}/issues/1347",
    "labels_url": f"{API}/issues/1347/labels{{/name}}",
    "html_url": f"{PAGE}/issues/1347",
    "number": 1347,
    "state": "open",
    "title": "Found a bug",
    "body": "It breaks.\nOften.",
    "user": OCTOCAT,
    "labels": [BUG],
    "assignee": None,
    "locked": False,
    "pull_request": {
        "url": f"{API}/pulls/1347",
        "html_url": f"{PAGE}/pull/1347",
        "merged_at": None,
    },
    "created_at": "2011-04-22T13:33:48Z",
}
REPOSITORY = {
    "id": 1296269,
    "name": "Hello-World",
    "full_name": "octocat/Hello-World",
    "owner": OCTOCAT,
    "html_url": PAGE,
    "archive_url": f"{API}/{{archive_format}}{{/ref}}",
    "clone_url": f"{PAGE}.git",
    "ssh_url": "git@github.com:octocat/Hello-World.git",
    "topics": ["octocat", "api"],
    "permissions": {"admin": False, "pull": True},
    "license": {"key": "mit", "name": "MIT License", "url": "https://api.github.com/licenses/mit"},
}
CHARGE = {
    "id": "ch_3MmlLrLkdIwHu7ix0snN0B15",
    "amount": 1099,
    "balance_transaction": "txn_3MmlLrLkdIwHu7ix0uke3Ezy",
    "billing_details": {
        "address": {"city": None, "country": None},
        "name": "Ada Lovelace",
        "phone": None,
    },
    "created": 1679090539,
    "customer": "cus_NffrFeUfNV2Hib",
    "metadata": {"order_id": "6735"},
    "payment_method_details": {
        "card": {"brand": "visa", "checks": {"cvc": None}, "last4": "4242"},
        "type": "card",
    },
    "receipt_url": "https://pay.stripe.com/receipts/payment/CAcaFwoVYWNjdF8xTTJK",
    "paid": True,
}
ORDER = {
    "order": {
        "id": 450789469,
        "admin_graphql_api_id": "gid://shopify/Order/450789469",
        "checkout_id": 901414060,
        "created_at": "2008-01-10T11:00:00-05:00",
        "order_number": 1001,
        "total_price": "598.94",
        "total_price_set": {"shop_money": {"amount": "598.94", "currency_code": "USD"}},
        "customer": {"id": 207119551, "email": "bob@mail.example", "first_name": "Bob"},
        "line_items": [
            {"id": 466157049, "name": "IPod - green", "price": 199.00, "quantity": 1, "sku": "IPOD2008GREEN",
             "properties": [{"name": "Engraving", "value": "Happy Birthday"}]},
            {"id": 518995019, "name": "IPod - red", "price": 199.50, "quantity": 2, "sku": "IPOD2008RED"},
        ],
    }
}  # fmt: skip
CALENDAR = {
    "kind": "calendar#events",
    "etag": '"p33g"',
    "summary": "Team",
    "nextSyncToken": "CPDAlvWDx70CEPDAlvWDx70CGAU=",
    "items": [
        {
            "kind": "calendar#event",
            "etag": '"3181161784712000"',
            "id": "4ukgfokgq8g9vqhvk",
            "htmlLink": f"https://www.google.com/calendar/event?eid=NHVrZ{number}",
            "summary": f"Stand-up {number}",
            "creator": {"email": "ada@example.com"},
            "start": {"dateTime": "2026-05-28T09:00:00.000+02:00", "timeZone": "Europe/Berlin"},
            "iCalUID": "4ukg@google.com",
        }
        for number in (1, 2)
    ],
}

TOLD = {
    "issue": (
        ISSUE,
        f"""Link: {PAGE}/issues/1347
Number: 1347
State: open
Title: Found a bug
Body: It breaks.
Often.
User: octocat (type User, site admin no)
Labels: bug (default yes)
Locked: no
Pull request: link {PAGE}/pull/1347
Created at: 2011-04-22 13:33:48 UTC
(Technical fields are left out: ID, node ID, URL and 4 more.)""",
    ),
    "repository": (
        REPOSITORY,
        f"""ID: 1296269
Name: Hello-World
Full name: octocat/Hello-World
Owner: octocat (type User, site admin no)
Link: {PAGE}
Ssh URL: git@github.com:octocat/Hello-World.git
Topics: octocat, api
Permissions: admin no, pull yes
License: MIT License (key mit)
(Technical fields are left out: archive URL, clone URL, ID and 5 more.)""",
    ),
    "charge": (
        CHARGE,
        """ID: ch_3MmlLrLkdIwHu7ix0snN0B15
Amount: 1099
Billing details: Ada Lovelace
Created: 2023-03-17 22:02:19 UTC
Metadata: order ID 6735
Payment method details: card (brand visa, last4 4242), type card
Receipt URL: https://pay.stripe.com/receipts/payment/CAcaFwoVYWNjdF8xTTJK
Paid: yes
(Technical fields are left out: balance transaction, customer.)""",
    ),
    "order": (
        ORDER,
        """Order:
Created at: 2008-01-10 11:00:00 -05:00
Order number: 1001
Total price: 598.94
Total price set: shop money (amount 598.94, currency code USD)
Customer: bob@mail.example (first name Bob)
Line items:
- IPod - green (price 199.0, quantity 1, SKU IPOD2008GREEN, properties Engraving (value Happy Birthday))
- IPod - red (price 199.5, quantity 2, SKU IPOD2008RED)
(Technical fields are left out: ID, admin graphql API ID, checkout ID.)""",
    ),
    "calendar": (
        CALENDAR,
        """Summary: Team
Items:
- Stand-up 1 (link https://www.google.com/calendar/event?eid=NHVrZ1, creator ada@example.com, \
start (date time 2026-05-28 09:00:00 +02:00, time zone Europe/Berlin))
- Stand-up 2 (link https://www.google.com/calendar/event?eid=NHVrZ2, creator ada@example.com, \
start (date time 2026-05-28 09:00:00 +02:00, time zone Europe/Berlin))
(Technical fields are left out: etag, next sync token, kind and 2 more.)""",
    ),
}


@pytest.mark.parametrize("name", TOLD)
def test_answer_of_an_api_reads_well(name: str):
    """An issue and a repository of GitHub, a charge of Stripe, an order of Shopify, the events of a calendar."""
    value, told = TOLD[name]
    assert result_in_words(json.dumps(value)) == told


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"temperature": 22.5, "humidity": 65}, "Temperature: 22.5\nHumidity: 65"),
        (list(range(1000)), f"{', '.join(map(str, range(20)))}, and 980 more"),
        ({"rows": [[1, 2], [3, 4]]}, "Rows: (1, 2); (3, 4)"),
        ({"data": '{"status": "ok", "rows": [1, 2]}', "count": 2}, "Data: status ok, rows (1, 2)\nCount: 2"),
        ('{"status": "ok"}', "Status: ok"),
        ([1, "a", None, True, {"id": 7}], "- 1\n- a\n- none\n- yes\n- ID 7"),
        ({"a": {"b": {"c": {"d": {"e": {"f": {"g": 1}}}}}, "x": 2}}, "A:\nB: c (d (e (1 field)))\nX: 2"),
        ({"to": [{"by": "mail", "after": 5}, {"by": "sms", "after": 9}]}, "To: by mail, after 5; by sms, after 9"),
        ({}, "nothing"),
        ({"order": {"note": None}}, "nothing"),
        ({"note": None, "rest": {"a": [], "b": {"c": ""}}}, "nothing"),
    ],
)  # fmt: skip
def test_other_shapes_are_told_in_words(value: Any, told: str):
    """Numbers, tables, JSON inside JSON, a result that is encoded twice, deep and empty objects."""
    assert result_in_words(json.dumps(value)) == told


@pytest.mark.parametrize(
    "value",
    [
        {"payment_url": "https://pay.example/p/1", "order_id": 4711},
        {"id": "ch_3MmlLrLkdIwHu7ix0snN0B15"},
        {"file_url": "https://files.example/report.pdf", "docs_url": "https://docs.example/"},
        {"kind": "dog", "api_token": "sk_live_1a"},
        {"node_id": "MDU6", "url": f"{API}/x"},
        {"id": 7, "name": "Lamp"},
        {"colour": "red", "kind": "apple"},
    ],
)
def test_what_a_person_may_need_is_never_technical(value: dict[str, Any]):
    """The only id, short ids, pages to open, and technical fields if there are no others. A first `kind` is a type."""
    told = result_in_words(json.dumps(value))
    assert "left out" not in told
    assert all(
        str(each) in told
        for key, each in value.items()
        if key != "kind" or key != next(iter(value))
    )


def test_choice_names_all_that_tells_things_apart():
    """Of two customers with one name, the id is what differs."""
    same = [
        {"id": 207119551 + number, "name": "Ada", "url": f"{API}/{number}"} for number in range(2)
    ]
    told = Ambiguous("customer", "ada", same).in_words
    assert "207119551" in told
    assert "207119552" in told


def test_long_list_says_how_many_more_there_are():
    """Each row is bounded in fields and length, and its address is whole."""
    row = {f"field_{number}": "x" * 1000 for number in range(20)}
    address = f"https://e.org/{'a' * 200}"
    told = result_in_words(json.dumps([{"name": "Lamp", "link": address, **row}] * (MAX_ROWS + 3)))
    lines = told.splitlines()
    assert lines[-1] == "and 3 more"
    assert lines[0].startswith(f"- Lamp (link {address}, field 0 xxx")
    assert lines[0].endswith("…, and 13 more fields)")
    assert len(lines[0]) < 2000


@pytest.mark.parametrize(
    ("key", "label"),
    [
        ("updatedAt", "updated at"), ("due_on", "due on"), ("htmlBody", "HTML body"), ("orderID", "order ID"),
        ("_id", "ID"), ("EUR", "EUR"), ("x", "x"), ("prod-db-1", "prod-db-1"), ("docs/my_file.md", "docs/my_file.md"),
        ("São Paulo", "São Paulo"), ("+1", "+1"), ("my_file.md", "my_file.md"), ("", ""),
    ],
)  # fmt: skip
def test_key_of_a_field_becomes_a_label(key: str, label: str):
    """A key that may be data, such as the name of a file, loses no character."""
    assert label_of(key) == label


def test_digits_stay_as_the_api_wrote_them():
    """Trailing zeros and long numbers are amounts and ids."""
    assert result_in_words('{"price": 8.00, "big": 12345678901234567890123, "tiny": 1.50e-7}') == (
        "Price: 8.00\nBig: 12345678901234567890123\nTiny: 1.50e-7"
    )


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=30,
)


@given(json_values)
def test_any_json_is_told_in_words(value: Any):
    """No value raises an error or is told as an empty text, except an empty text itself."""
    assert result_in_words(json.dumps(value)) or value == ""
