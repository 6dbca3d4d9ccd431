"""The fake platforms as a process, as end-to-end tests use them."""

from __future__ import annotations

import base64
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from sayso.testing.platforms import twilio as twilio_api
from sayso.testing.platforms.fake_platforms import (
    SLACK_BOT_TOKEN,
    TELEGRAM_TOKEN,
    TWILIO_ACCOUNT_SID,
    TWILIO_AUTH_TOKEN,
    FakePlatforms,
)
from sayso.testing.platforms.server import RequestLog
from sayso.testing.platforms.twilio import TEMPLATE

ROOT = Path(__file__).parents[3]


CHAT = "whatsapp:+4915100000042"
BASIC = base64.b64encode(f"{TWILIO_ACCOUNT_SID}:{TWILIO_AUTH_TOKEN}".encode()).decode()
#: The check of each platform's answer to a rate limit.
TOO_FAST = {
    "twilio": lambda answer: (answer.json()["code"], answer.headers["Retry-After"]) == (20429, "7"),
    "telegram": lambda answer: answer.json()["parameters"] == {"retry_after": 7},
    "slack": lambda answer: (
        (answer.json()["error"], answer.headers["Retry-After"]) == ("ratelimited", "7")
    ),
}
#: The status and key of each platform's answer to an accepted message.
TAKEN = {"twilio": (201, "sid"), "telegram": (200, "result"), "slack": (200, "ts")}


@pytest.fixture(scope="module")
def process() -> Iterator[str]:
    """Run the fake platforms as a process and yield their URL."""
    command = [sys.executable, "-m", "sayso.testing.platforms.fake_platforms", "--port", "0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.terminate()


@pytest.fixture
def url(process: str) -> str:
    """Return the URL of the fake platforms after a reset."""
    order(process, "reset")
    return process


def order(url: str, name: str, **words: Any) -> httpx.Response:
    """Send an order to the process."""
    return httpx.post(f"{url}/{name}", json=words, timeout=30)


def send(url: str, platform: str, text: str = "hello", **fields: str) -> httpx.Response:
    """Send a message as a platform's client would."""
    if platform == "twilio":
        words = {"To": CHAT, "From": "whatsapp:+14155238886", **(fields or {"Body": text})}
        path = f"2010-04-01/Accounts/{TWILIO_ACCOUNT_SID}/Messages.json"
        return httpx.post(
            f"{url}/twilio/{path}",
            data=words,
            headers={"Authorization": f"Basic {BASIC}"},
            timeout=30,
        )
    if platform == "telegram":
        path = f"telegram/bot{TELEGRAM_TOKEN}/sendMessage"
        return httpx.post(f"{url}/{path}", json={"chat_id": 1, "text": text}, timeout=30)
    bearer = {"Authorization": f"Bearer {SLACK_BOT_TOKEN}"}
    said = {"channel": "D0ADA", "text": text}
    return httpx.post(f"{url}/slack/api/chat.postMessage", json=said, headers=bearer, timeout=30)


def is_taken(answer: httpx.Response, platform: str) -> bool:
    """Return whether the platform accepted the message."""
    status, name = TAKEN[platform]
    return answer.status_code == status and name in answer.json()


def texts(url: str) -> list[str]:
    """Return the texts that arrived."""
    return [entry["text"] for entry in httpx.get(f"{url}/sent").json()]


@pytest.mark.parametrize("platform", TAKEN)
def test_rate_limit_answers_with_the_platforms_own_429(url: str, platform: str):
    """platforms.md 1.4, 2.4, 3.4: the answer has the platform's form of a wait; a refused message does not arrive."""
    assert order(url, "rate", platform=platform, per_second=0.01).status_code == 200
    answers = [send(url, platform, str(number)) for number in range(3)]
    assert [answer.status_code == 429 for answer in answers] == [False, True, True]
    assert (is_taken(answers[0], platform), TOO_FAST[platform](answers[1]), texts(url)) == (
        True,
        True,
        ["0"],
    )
    order(url, "reset")
    assert all(is_taken(send(url, platform), platform) for _ in range(3))


@pytest.mark.parametrize("platform", TAKEN)
def test_busiest_second_of_each_platform_is_reported(url: str, platform: str):
    """Accepted messages count, and refused ones do not."""
    order(url, "script", platform=platform, error="429", times=2)
    for _ in range(3):
        send(url, platform)
    assert httpx.get(f"{url}/busiest").json() == {platform: 1}


@pytest.mark.parametrize(
    ("platform", "error", "status", "words"),
    [
        ("twilio", "429", 429, "20429"),
        ("twilio", "503", 503, "Internal Server Error"),
        ("twilio", "63016", 400, "63016"),
        ("telegram", "429", 429, "retry_after"),
        ("telegram", "502", 502, "Bad Gateway"),
        ("telegram", "Forbidden: bot was blocked by the user", 403, "blocked by the user"),
        ("slack", "429", 429, "ratelimited"),
        ("slack", "500", 500, "upstream error"),
        ("slack", "channel_not_found", 200, "channel_not_found"),
    ],
)
def test_scripted_errors_come_the_scripted_number_of_times(
    url: str, platform: str, error: str, status: int, words: str
):
    """Each error has the platform's own form; later messages arrive."""
    order(url, "script", platform=platform, error=error, times=2)
    answers = [send(url, platform) for _ in range(3)]
    assert [(answer.status_code, words in answer.text) for answer in answers[:2]] == [
        (status, True)
    ] * 2
    assert (is_taken(answers[2], platform), texts(url)) == (True, ["hello"])


@pytest.mark.parametrize("platform", TAKEN)
@pytest.mark.parametrize(("error", "arrived"), [("drop", []), ("lost", ["hello"])])
def test_scripted_dropped_connection_comes_before_or_after_the_message(
    url: str, platform: str, error: str, arrived: list[str]
):
    """The sender cannot tell the two cases apart; the log can."""
    order(url, "script", platform=platform, error=error)
    with pytest.raises(httpx.RemoteProtocolError):
        send(url, platform)
    assert texts(url) == arrived


@pytest.mark.parametrize("platform", TAKEN)
def test_scripted_delays_are_kept(url: str, platform: str):
    """A slow answer is an answer."""
    order(url, "script", platform=platform, error="slow", seconds=0.2)
    answer = send(url, platform)
    assert (is_taken(answer, platform), answer.elapsed.total_seconds() >= 0.2, texts(url)) == (
        True,
        True,
        ["hello"],
    )


def test_windows_are_closed_and_opened(url: str):
    """platforms.md 1.3: outside the window Twilio accepts a text that never arrives; a template arrives."""
    assert order(url, "close", platform="twilio", address=CHAT).status_code == 200
    assert is_taken(send(url, "twilio"), "twilio")
    assert ([call["method"] for call in httpx.get(f"{url}/calls").json()], texts(url)) == (
        ["63016"],
        [],
    )
    send(url, "twilio", ContentSid=TEMPLATE, ContentVariables='{"1": "done."}')
    order(url, "open", platform="twilio", address=CHAT)
    send(url, "twilio")
    assert texts(url) == ["News for you: done. Write to us to go on.", "hello"]
    order(url, "close", platform="twilio", address=CHAT)
    order(url, "reset")
    assert is_taken(send(url, "twilio"), "twilio")
    assert texts(url) == ["hello"]


@pytest.mark.parametrize(
    ("name", "words", "cure"),
    [
        ("script", {"platform": "telegramm", "error": "429"}, "unknown platform 'telegramm'"),
        ("script", {"platform": "telegram", "errors": "429"}, "errors"),
        ("rate", {"platform": "sms", "per_second": 1}, "unknown platform 'sms'"),
        ("rate", {"platform": "slack", "per_second": 0}, "use a number above 0"),
        ("close", {"platform": "slack", "address": "D0ADA"}, "only twilio has"),
        ("fail", {"platform": "slack", "address": "D0ADA", "code": "1"}, "only twilio does"),
        ("close", {"platform": "twilio"}, "address"),
    ],
)
def test_invalid_order_is_refused(url: str, name: str, words: dict[str, Any], cure: str):
    """A misspelled script would otherwise pass as a run without faults."""
    answer = order(url, name, **words)
    assert (answer.status_code, cure in answer.json()["error"]) == (400, True)


def test_error_of_a_fake_is_printed(capsys: pytest.CaptureFixture[str]):
    """The client sees only that the connection ends."""
    with FakePlatforms() as platforms:
        platforms.fakes["broken"] = None  # type: ignore[assignment]
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.get(f"{platforms.url}/broken/x")
    assert "'NoneType' object has no attribute 'sends'" in capsys.readouterr().err


def test_unknown_order_is_not_found(url: str):
    """An unknown name is a 404, and so is a GET, because orders are posted."""
    assert (order(url, "rates").status_code, httpx.get(f"{url}/reset").status_code) == (404, 404)


def test_rates_are_counted_by_the_clock():
    """Any period of a second admits the same number; the next begins a second after its first message."""
    now = [100.0]
    log = RequestLog(lambda: now[0])
    log.limit("slack", 2)
    assert [log.admits("slack") for _ in range(3)] == [True, True, False]
    now[0] += 0.99
    assert not log.admits("slack")
    now[0] += 0.01
    assert [log.admits("slack") for _ in range(3)] == [True, True, False]
    assert all(log.admits("telegram") for _ in range(9))


@pytest.mark.parametrize(("per_second", "wait"), [(0.1, 10.0), (1.5, 1 / 1.5)])
def test_fractional_rates_are_kept(per_second: float, wait: float):
    """The rates are one in ten seconds, and three in two seconds."""
    now = [100.0]
    log = RequestLog(lambda: now[0])
    log.limit("twilio", per_second)
    assert [log.admits("twilio") for _ in range(2)] == [True, False]
    now[0] += wait + 1e-9
    assert log.admits("twilio")


def test_fake_twilio_retries_a_download_while_the_web_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A refused or reset connection means that the web restarts; a 404 means that the file is missing."""
    (tmp_path / "file.txt").write_bytes(b"here")
    answers = [
        urllib.error.URLError(ConnectionRefusedError()),
        ConnectionResetError(),
        urllib.request.urlopen((tmp_path / "file.txt").as_uri()),
        urllib.error.HTTPError("", 404, "Not Found", {}, None),
    ]

    def urlopen(*_: Any, **__: Any) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(twilio_api.urllib.request, "urlopen", urlopen)
    monkeypatch.setattr(twilio_api.time, "sleep", lambda _: None)
    twilio = twilio_api.FakeTwilio(RequestLog(), "AC", "token", "http://127.0.0.1:9")
    assert twilio._fetch("http://127.0.0.1:9/media/x")["size"] == 4
    with pytest.raises(twilio_api.TwilioRefusal):
        twilio._fetch("http://127.0.0.1:9/media/x")


@pytest.mark.parametrize("text", ["<b>", "<x>a</x>", "a < b", "<b><i>a</b></i>"])
def test_fake_telegram_refuses_bad_html(platforms: FakePlatforms, text: str):
    """platforms.md 2.3: a fake that accepts everything proves nothing."""
    path, said = (
        f"telegram/bot{TELEGRAM_TOKEN}/sendMessage",
        {"chat_id": 1, "text": text, "parse_mode": "HTML"},
    )
    assert httpx.post(f"{platforms.url}/{path}", json=said).status_code == 400


def test_unknown_platform_is_refused(platforms: FakePlatforms):
    """A misspelled script would otherwise pass as a run without faults."""
    with pytest.raises(ValueError, match="unknown platform 'telegramm'"):
        platforms.script("telegramm", "429")
