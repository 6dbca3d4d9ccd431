"""The fake platforms as a process, as end-to-end tests use them."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from channels.fakes import twilio_api
from channels.fakes.base import Ledger
from channels.fakes.platforms import TELEGRAM_TOKEN, FakePlatforms

ROOT = Path(__file__).parents[2]


def call(url: str, body: Any = None) -> Any:
    """GET, or POST JSON."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read())


def test_process_prints_its_url_and_keeps_a_ledger():
    """Started as a process it prints where it listens, obeys a script and tells what arrived."""
    command = [sys.executable, "-m", "channels.fakes.platforms", "--port", "0"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        send = f"{url}/telegram/bot{TELEGRAM_TOKEN}/sendMessage"
        call(f"{url}/script", {"platform": "telegram", "error": "429", "times": 1})
        with pytest.raises(urllib.error.HTTPError, match="429"):
            call(send, {"chat_id": 1, "text": "hello"})
        call(send, {"chat_id": 1, "text": "hello"})
        assert [entry["text"] for entry in call(f"{url}/ledger")] == ["hello"]
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


def test_fake_twilio_asks_again_while_the_web_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A web that was killed over a file is not a file that cannot be had; one that answers 404 is."""
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
    twilio = twilio_api.FakeTwilio(Ledger(), "AC", "token", "http://127.0.0.1:9")
    assert twilio._fetched("http://127.0.0.1:9/media/x")["size"] == 4
    with pytest.raises(twilio_api.RefusedError):
        twilio._fetched("http://127.0.0.1:9/media/x")


@pytest.mark.parametrize("text", ["<b>", "<x>a</x>", "a < b", "<b><i>a</b></i>"])
def test_fake_telegram_refuses_bad_html(platforms: FakePlatforms, text: str):
    """A fake that accepts everything proves nothing."""
    url = f"{platforms.telegram_url}/bot{TELEGRAM_TOKEN}/sendMessage"
    with pytest.raises(urllib.error.HTTPError, match="400"):
        call(url, {"chat_id": 1, "text": text, "parse_mode": "HTML"})


def test_unknown_platform_is_refused(platforms: FakePlatforms):
    """A typo in a script must not pass as a quiet day."""
    with pytest.raises(ValueError, match="unknown platform 'telegramm'"):
        platforms.script("telegramm", "429")
