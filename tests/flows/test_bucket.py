"""Web and worker as on two machines, with a data folder each: files and long texts go through a bucket."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from sayso.channels.web.app import MAX_DOWNLOADS
from sayso.infra.storage.s3 import Bucket
from sayso.testing.platforms import fake_platforms as fakes
from sayso.testing.platforms import webhooks as signing
from sayso.testing.platforms.webhooks import JPEG
from tests.config.processes import free_port
from tests.flows.system import Person, SlackPerson, System, TelegramPerson, WhatsAppPerson, until
from tests.flows.test_media_in import slack_photo, telegram_photo, whatsapp_photo
from tests.s3 import BUCKET, S3Server

SECRET_KEYS = {"SAYSO_SECRET_KEYS": "one-key-of-both-machines"}
PAGE = {"X-Sayso-Console": "1"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Return an S3 server that tests may kill."""
    with S3Server(tmp_path_factory.mktemp("s3")) as running:
        yield running


@pytest.fixture(scope="module")
def system(server: S3Server) -> Iterator[System]:
    """Return a bot whose web and worker share Redis and a bucket, and no folder."""
    media = f"{{store: 's3://{BUCKET}/shop', endpoint: '{server.endpoint}', region: us-east-1}}"
    environ = {**server.environ(), **SECRET_KEYS}
    with (
        tempfile.TemporaryDirectory(prefix="sayso-bucket-") as folder,
        System(Path(folder), workers=1, environ=environ, media=media, apart=True) as running,
    ):
        yield running


def check_picture(system: System, person: Person) -> None:
    """Fail unless the next messages are the words and the chart, byte for byte: one message on WhatsApp."""
    messages = person.hears(1 if isinstance(person, WhatsAppPerson) else 2)
    words = messages[0]
    picture = messages[-1]
    assert "Sales in 2026" in words["text"]
    blob = system.http.get(f"{system.platforms.url}/blobs/{picture['media']['sha256']}").content
    assert blob.startswith(b"\x89PNG")
    assert hashlib.sha256(blob).hexdigest() == picture["media"]["sha256"]


def stored(server: S3Server, folder: str) -> list[str]:
    """Return the names of the objects in a folder of the bucket."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.environ().items():
            patch.setenv(name, value)
        bucket = Bucket(f"s3://{BUCKET}/shop", endpoint=server.endpoint, region="us-east-1")
    return [each.name for each in bucket.objects(folder).list()]


def test_nothing_is_lost_while_the_bucket_is_down(system: System, server: S3Server) -> None:
    """The web accepts messages and the worker answers. When the bucket is back, files work as before."""
    person, other = TelegramPerson(system, 931), WhatsAppPerson(system, 932)
    server.kill()
    person.say("hello")
    assert person.hears()[0]["text"].startswith("You said: hello")
    other.say("sales chart")
    assert "could not be stored, so the user does not get it" in other.hears()[0]["text"]
    assert system.http.get(f"{system.url}/healthz?full", timeout=30).json()["disk"] == "StoreSilent"
    assert system.http.get(f"{system.url}/readyz").status_code == 200
    server.start()
    for each in (person, other):
        each.say("sales chart")
        check_picture(system, each)


def test_frozen_bucket_delays_only_downloads(system: System, server: S3Server) -> None:
    """More downloads wait than the web has threads: some get 503, and webhooks and turns go on."""
    person, other = WhatsAppPerson(system, 934), TelegramPerson(system, 935)
    person.say("export invoices")
    link = person.hears()[0]["text"].split("\n")[-1]
    server.freeze()
    try:
        with ThreadPoolExecutor(40) as pool:
            downloads = [pool.submit(httpx.get, link, timeout=60) for _ in range(40)]
            until(lambda: sum(each.done() for each in downloads) >= 40 - MAX_DOWNLOADS)
            other.say("hello")
            assert other.hears()[0]["text"].startswith("You said: hello")
            assert {each.result().status_code for each in downloads if each.done()} == {503}
            server.thaw()
            assert {each.result().status_code for each in downloads} <= {200, 503}
    finally:
        server.thaw()
    assert system.http.get(link).status_code == 200


@pytest.mark.parametrize(
    ("kind", "name"), [(WhatsAppPerson, 941), (TelegramPerson, 942), (SlackPerson, 943)]
)
def test_file_of_a_tool_reaches_whatsapp(
    system: System, server: S3Server, kind: type[Person], name: int
) -> None:
    """The worker stored it. WhatsApp downloads it from the web on the other machine."""
    person = kind(system, name)
    person.say("sales chart")
    check_picture(system, person)
    assert stored(server, "media")
    assert not [path for path in system.data.rglob("media/*/*") if path.is_file()]


def test_link_works_on_another_machine(system: System) -> None:
    """WhatsApp cannot show a CSV file, so it gets a link to the web, which did not store the file."""
    person = WhatsAppPerson(system, 944)
    person.say("export invoices")
    (message,) = person.hears()
    answer = system.http.get(message["text"].split("\n")[-1]).raise_for_status()
    assert len(answer.content) == int(answer.headers["Content-Length"]) > 500
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    ("kind", "name", "platform", "photo"),
    [
        (WhatsAppPerson, 951, "twilio", whatsapp_photo),
        (TelegramPerson, 952, "telegram", telegram_photo),
        (SlackPerson, 953, "slack", slack_photo),
    ],
)
def test_photo_of_a_person_reaches_the_model(
    system: System, kind: type[Person], name: int, platform: str, photo
) -> None:
    """The worker downloads it from the platform into the bucket."""
    person = kind(system, name)
    system.post(*photo(system, person, system.platforms.host(platform, JPEG), "my dog"))
    assert f"[image image/jpeg {len(JPEG)} bytes" in person.hears()[0]["text"]


def test_upload_to_the_console_reaches_the_worker(system: System) -> None:
    """The web stores it, and the worker on the other machine reads it."""
    with httpx.Client(base_url=system.url, headers=PAGE, timeout=60) as browser:
        browser.get("/console/web")
        headers = {"X-Sayso-Filename": "a.jpg", "Content-Type": "image/jpeg"}
        name = (
            browser.post("/console/web/files", content=JPEG, headers=headers)
            .raise_for_status()
            .json()["file"]
        )
        browser.post(
            "/hooks/web", json={"id": "e1", "text": "look", "files": [name]}
        ).raise_for_status()
        with browser.stream("GET", "/console/web/events") as feed:
            answer = next(line for line in feed.iter_lines() if f"{len(JPEG)} bytes" in line)
    assert "You said: look" in answer


def test_long_text_is_in_the_bucket_until_the_person_is_erased(
    system: System, server: S3Server
) -> None:
    """The same holds for files. `people erase` runs on the machine of the web."""
    person = TelegramPerson(system, 961)
    person.say("a long story " * 400)
    person.hears(2)
    photo = system.platforms.host("telegram", signing.JPEG + b"of 961")
    update = signing.telegram_photo(961_900, photo, "look", user=int(person.chat))
    assert (
        system.post("ops-tg", signing.telegram_hook(fakes.TELEGRAM_SECRET, update)).status_code
        == 200
    )
    person.hears()
    until(lambda: stored(server, "texts"))
    before = {folder: set(stored(server, folder)) for folder in ("media", "owners")}
    system.printed("people", "erase", "ops-tg", person.chat)
    after = {folder: set(stored(server, folder)) for folder in ("media", "owners")}
    assert stored(server, "texts") == []
    assert [len(before[folder] - after[folder]) for folder in before] == [1, 1]


@pytest.mark.parametrize(
    ("command", "secret", "told"),
    [
        ("web", "", "the credentials may not write objects"),
        ("doctor", "wrong", "the credentials are refused"),
    ],
)
def test_wrong_credentials_are_reported_in_one_line(
    system: System, server: S3Server, command: str, secret: str, told: str
) -> None:
    """No process starts with them, and the doctor finds them beside a running bot."""
    options = ["--port", str(free_port())] if command == "web" else []
    code, output, errors = system.command(
        command, *options, **server.environ("reader", secret=secret)
    )
    assert code == (3 if command == "web" else 1)
    (line,) = [each for each in (output + errors).splitlines() if told in each]
    assert f"s3://{BUCKET}/shop" in line
    assert not [
        word for word in ("reader-secret", "reader-key", "Traceback") if word in output + errors
    ]


def test_no_secret_in_the_logs(system: System) -> None:
    """It reads the logs of all tests above."""
    log = system.log.read_text()
    assert not [secret for secret in ("bot-secret", "bot-key") if secret in log]
