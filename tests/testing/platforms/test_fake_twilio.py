"""FakeTwilio refuses what Twilio refuses, so that a test against it proves something."""

from __future__ import annotations

import base64
import json
import time
from typing import Any
from urllib.parse import urlencode

import pytest

from sayso.testing.platforms.server import RecordedRequest, RequestLog
from sayso.testing.platforms.twilio import (
    CONFIRM_TEMPLATE,
    TEMPLATE,
    FakeTwilio,
    TwilioRefusal,
    _check_file,
)

CHAT = "whatsapp:+4915100000042"
QUICK = {"body": "{{1}}", "actions": [{"title": "Yes", "id": "{{2}}"}]}
LIST = {
    "body": "{{1}}",
    "button": "☰",
    "items": [{"item": "{{2}}", "id": "{{3}}"}, {"item": "{{4}}", "id": "{{5}}"}],
}


@pytest.fixture
def twilio() -> FakeTwilio:
    """Return a fake with one account."""
    return FakeTwilio(RequestLog(), "AC", "token", "http://127.0.0.1:9")


def post(
    twilio: FakeTwilio, path: str, fields: Any, kind: str = "application/x-www-form-urlencoded"
) -> Any:
    """Return the answer to an authenticated call, or its error code."""
    body = json.dumps(fields) if "json" in kind else urlencode(fields, doseq=True)
    basic = "Basic " + base64.b64encode(b"AC:token").decode()
    answer = twilio.answer(
        RecordedRequest("POST", path, {"authorization": basic, "content-type": kind}, body.encode())
    )
    data = json.loads(answer.body)
    return data["code"] if answer.status >= 400 else data


def message(twilio: FakeTwilio, **fields: str) -> Any:
    """Send a message."""
    return post(
        twilio,
        "/2010-04-01/Accounts/AC/Messages.json",
        {"To": CHAT, "From": "whatsapp:+1415523", **fields},
    )


def content(twilio: FakeTwilio, kind: str, shape: dict[str, Any], samples: int = 5) -> Any:
    """Create a Content."""
    numbers = {str(number): "x" for number in range(1, samples + 1)}
    resource = {
        "friendly_name": "n",
        "language": "en",
        "variables": numbers,
        "types": {kind: shape},
    }
    return post(twilio, "/v1/Content", resource, "application/json")


@pytest.mark.parametrize(
    ("kind", "shape", "samples"),
    [
        ("twilio/quick-reply", {**QUICK, "actions": []}, 5),
        ("twilio/quick-reply", {**QUICK, "actions": QUICK["actions"] * 4}, 5),
        ("twilio/quick-reply", {**QUICK, "actions": [{"title": "x" * 21, "id": "1"}]}, 5),
        ("twilio/quick-reply", {**QUICK, "actions": [{"title": "x"}]}, 5),
        ("twilio/quick-reply", QUICK, 1),
        ("twilio/list-picker", {**LIST, "items": []}, 5),
        ("twilio/list-picker", {**LIST, "items": LIST["items"] * 6}, 5),
        ("twilio/list-picker", {**LIST, "button": ""}, 5),
        ("twilio/list-picker", {**LIST, "items": [{"title": "x", "id": "1"}]}, 5),
        ("twilio/card", {"body": "{{1}}"}, 5),
    ],
)
def test_invalid_content_is_refused(
    twilio: FakeTwilio, kind: str, shape: dict[str, Any], samples: int
):
    """platforms.md 1.3: the content types that need no approval, and their fields."""
    assert content(twilio, kind, shape, samples) == 60200


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"1": "q", "2": "a", "3": "1", "4": "b"}, 63028),
        ({"1": "q", "2": "x" * 25, "3": "1", "4": "b", "5": "2"}, 63013),
        ({"1": "q", "2": "a", "3": "1" * 201, "4": "b", "5": "2"}, 63013),
        ({"1": "q", "2": "a", "3": "1", "4": "a", "5": "2"}, 63013),
        ({"1": "q", "2": "", "3": "1", "4": "a", "5": "2"}, 63013),
        ({"1": "q" * 1025, "2": "a", "3": "1", "4": "b", "5": "2"}, 21617),
        ({"1": 1}, 21656),
    ],
)
def test_invalid_variables_are_refused(twilio: FakeTwilio, values: dict[str, Any], code: int):
    """platforms.md 1.3: 24 characters for an item, 200 for its id, 1,024 for the body."""
    sid = content(twilio, "twilio/list-picker", LIST)["sid"]
    assert message(twilio, ContentSid=sid, ContentVariables=json.dumps(values)) == code


def test_variables_are_substituted_once(twilio: FakeTwilio):
    """A placeholder inside a user's text stays text."""
    sid = content(twilio, "twilio/quick-reply", QUICK)["sid"]
    message(twilio, ContentSid=sid, ContentVariables=json.dumps({"1": 'a "{{2}}"\n', "2": "d"}))
    assert twilio._log.sent[0]["text"] == 'a "{{2}}"\n'


def test_template_variable_must_be_one_line(twilio: FakeTwilio):
    """WhatsApp refuses line ends, tabs, wide gaps and empty values in an approved template."""
    for value in ("a\nb", "a\tb", "a     b", ""):
        assert (
            message(twilio, ContentSid=TEMPLATE, ContentVariables=json.dumps({"1": value})) == 21656
        )
    values = json.dumps({"1": "Sure?", "2": "y", "3": "n"})
    assert (
        message(twilio, ContentSid=CONFIRM_TEMPLATE, ContentVariables=values)["status"] == "queued"
    )


@pytest.mark.parametrize(
    "params",
    [
        {"channel": "WHATSAPP", "messageId": f"SM{1:032x}"},
        {"channel": "whatsapp", "messageId": f"PM{1:032x}"},
        {"channel": "whatsapp", "messageId": "SM1"},
        {"channel": "whatsapp"},
    ],
)
def test_invalid_typing_call_is_refused(twilio: FakeTwilio, params: dict[str, str]):
    """platforms.md 1.3: the call needs channel=whatsapp and the id of an inbound message."""
    assert post(twilio, "/v2/Indicators/Typing.json", params) == 20001


@pytest.mark.parametrize(
    ("mime", "size", "words", "code"),
    [
        ("image/gif", 1, "", 63005),
        ("text/csv", 1, "", 63005),
        ("image/png", 5 * 1024 * 1024 + 1, "", 63019),
        ("video/mp4", 16 * 1024 * 1024 + 1, "", 63019),
        ("application/pdf", 1, "See", 63030),
    ],
)
def test_invalid_file_is_refused(mime: str, size: int, words: str, code: int):
    """platforms.md 1.3: the allowed types and sizes, and text beside pictures only."""
    with pytest.raises(TwilioRefusal) as caught:
        _check_file({"mime": mime, "size": size}, words)
    assert caught.value.code == code


def test_busiest_second_is_counted(twilio: FakeTwilio):
    """Tests of rate limits read this figure."""
    for _ in range(3):
        message(twilio, Body="x")
    assert 1 <= twilio._log.busiest()["twilio"] <= 3


def listed(
    twilio: FakeTwilio, query: str = "", path: str = "Messages.json", method: str = "GET"
) -> Any:
    """Return the answer to a call for stored messages, or its error code."""
    basic = "Basic " + base64.b64encode(b"AC:token").decode()
    call = RecordedRequest(
        method, f"/2010-04-01/Accounts/AC/{path}{query}", {"authorization": basic}, b""
    )
    answer = twilio.answer(call)
    data = json.loads(answer.body or b"{}")
    return data["code"] if answer.status >= 400 else data


def test_list_is_filtered_by_day_newest_first_and_in_pages(twilio: FakeTwilio):
    """platforms.md 1.1: messages.list(to=, date_sent_after=) uses only the day of a time."""
    new, old = twilio.inbound.arrive(CHAT, "new"), twilio.inbound.arrive(CHAT, "old", ago=60)
    twilio.inbound.arrive(CHAT, "older", ago=3 * 86_400)
    twilio.inbound.arrive(CHAT, "other", to="whatsapp:+1")
    day = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 86_400))
    page = listed(twilio, f"?To=whatsapp%3A%2B4930123456&DateSent%3E={day}&PageSize=1")
    (message,) = page["messages"]
    assert (message["sid"], message["direction"], "ExternalUserId" in message) == (
        new,
        "inbound",
        False,
    )
    onward = page["next_page_uri"].partition("?")[2]
    page = listed(twilio, f"?{onward}")
    assert ([message["sid"] for message in page["messages"]], page["next_page_uri"]) == (
        [old],
        None,
    )
    assert listed(twilio, "?DateSent%3E=soon") == 20001


def test_file_is_listed_until_it_is_deleted(twilio: FakeTwilio):
    """platforms.md 1.2: a deleted file is a 404, and its message keeps the number of files."""
    sid = twilio.inbound.arrive(CHAT, files=(("ME1", "image/jpeg"),))
    (file,) = listed(twilio, path=f"Messages/{sid}/Media.json")["media_list"]
    assert (file["sid"], file["content_type"]) == ("ME1", "image/jpeg")
    assert listed(twilio, path=f"Messages/{sid}/Media/ME1.json", method="DELETE") == {}
    assert listed(twilio, path=f"Messages/{sid}/Media/ME1.json", method="DELETE") == 20404
    assert listed(twilio, path=f"Messages/SM{1:032x}/Media.json") == 20404
    assert listed(twilio)["messages"][0]["num_media"] == "1"


def test_busy_account_answers_as_json_and_says_when_to_try_again(twilio: FakeTwilio):
    """A message and a list get the same answer, of which a client reads both headers."""
    twilio.inbound.busy_calls = 1
    headers = {"Content-Type": "application/json", "Retry-After": "7"}
    assert twilio.failure("429").headers == headers
    assert listed(twilio) == 20429


def test_contents_are_not_listed(twilio: FakeTwilio):
    """No bot lists them, so the fake answers like Twilio for a resource that is not there."""
    basic = "Basic " + base64.b64encode(b"AC:token").decode()
    call = RecordedRequest("GET", "/v1/Content", {"authorization": basic}, b"")
    assert twilio.answer(call).status == 404
