"""Bucket: one line says what is wrong with a bucket or its credentials, and the cure. It never shows a secret."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from sayso.agent.channel.long_texts import LongTexts, TextFiles
from sayso.channels.base import Refused, Unreachable
from sayso.channels.media_store import MediaFiles, file_to_send
from sayso.infra.storage.objects import DATE_SECONDS, StoreRefused, StoreUnavailable
from sayso.infra.storage.s3 import Bucket
from tests.certificates import make_certificates, needs_openssl
from tests.s3 import BUCKET, S3Server

NAME = f"ab/{'a' * 64}"


def bucket(
    server: S3Server, user: str = "bot", *, secret: str = "", name: str = BUCKET, endpoint: str = ""
) -> Bucket:
    """Return a bucket as a user with these credentials opens it."""
    return bucket_with(
        server.environ(user, secret=secret), endpoint=endpoint or server.endpoint, name=name
    )


def bucket_with(environ: Mapping[str, str], *, endpoint: str = "", name: str = BUCKET) -> Bucket:
    """Return a bucket that is opened with these variables."""
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in environ.items():
            patch.setenv(variable, value)
        return Bucket(f"s3://{name}/pre/fix", endpoint=endpoint, region="us-east-1")


@contextmanager
def answering(status: str, body: str, context: ssl.SSLContext | None = None) -> Iterator[str]:
    """Yield the endpoint of a server that answers every request alike."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"

        def serve() -> None:
            while True:
                try:
                    client = listening.accept()[0]
                except OSError:  # the test is over
                    return
                with contextlib.suppress(OSError), client:
                    talking = context.wrap_socket(client, server_side=True) if context else client
                    talking.recv(1 << 16)
                    talking.sendall(f"{head}{body}".encode())
                    talking.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http{'s' if context else ''}://127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def test_check_leaves_the_bucket_as_it_was(s3_server: S3Server):
    """It removes the object that it wrote."""
    whole = bucket(s3_server)
    whole.check()
    assert list(whole.objects("check").list()) == []


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"user": "admin", "name": "nothing-here"}, "there is no bucket 'nothing-here': create it"),
        (
            {"secret": "wrong-secret"},
            "the credentials are refused (SignatureDoesNotMatch): check AWS_ACCESS_KEY_ID",
        ),
        (
            {"user": "stranger"},
            "the credentials are refused (InvalidAccessKeyId): check AWS_ACCESS_KEY_ID",
        ),
        ({"user": "reader"}, "the credentials may not write objects: allow it on the bucket"),
        ({"name": "nothing-here"}, "the credentials may not list objects: allow it on the bucket"),
    ],
)
def test_wrong_bucket_is_refused_with_the_cure(
    s3_server: S3Server, options: dict[str, str], reason: str
):
    """A missing bucket or a denied right does not mend itself, so the start is refused."""
    with pytest.raises(StoreRefused) as caught:
        bucket(s3_server, **options).check()
    text = str(caught.value)
    assert reason in text
    assert "\n" not in text
    assert not [secret for secret in ("-secret", "-key", "127.0.0.1") if secret in text]


def test_server_that_does_not_answer_is_unavailable_and_not_refused(s3_server: S3Server):
    """It may answer later, so the bot starts."""
    with pytest.raises(
        StoreUnavailable, match="could not list objects: it did not answer"
    ) as caught:
        bucket(s3_server, endpoint="http://127.0.0.1:1").check()
    assert not isinstance(caught.value, StoreRefused)


@pytest.mark.parametrize(
    ("status", "code", "told", "refused"),
    [
        (
            "403 Forbidden",
            "RequestTimeTooSkewed",
            "the clocks of this machine and of the server differ: set",
            True,
        ),
        ("503 Slow Down", "SlowDown", "could not list objects: it answered 503 (SlowDown)", False),
        (
            "403 Forbidden",
            "QuotaExceeded",
            "could not list objects: it answered 403 (QuotaExceeded)",
            False,
        ),
        (
            "301 Moved",
            "PermanentRedirect",
            "the bucket is in another region: set media.region",
            True,
        ),
        ("404 Not Found", "", "it answered 404 (not as S3 does: see media.endpoint)", False),
        ("200 OK", "", "its answer is not that of S3: see media.endpoint", False),
    ],
)
def test_error_of_the_server_is_reported_with_its_code(
    status: str, code: str, told: str, refused: bool
):
    """If the answer is not one of S3, the line says so."""
    body = (
        f"<Error><Code>{code}</Code><Message>of bot-secret</Message></Error>"
        if code
        else "<html>Hello</html>"
    )
    with answering(status, body) as endpoint, pytest.raises(StoreUnavailable) as caught:
        (asked := bucket_with(S3Server.environ(), endpoint=endpoint)).check()
    assert told in str(caught.value)
    assert isinstance(caught.value, StoreRefused) is refused
    assert asked._failure == ""  # the next call is made: another object may get another answer
    assert not [word for word in ("\n", "bot-secret", "bot-key") if word in str(caught.value)]


def test_objects_that_may_not_be_deleted_are_named(s3_server: S3Server):
    """The server answers 200 and refuses each object in the body."""
    bucket(s3_server).objects("kept").put(NAME, b"x")
    with pytest.raises(
        StoreRefused, match="the credentials may not delete objects: allow it on the bucket"
    ):
        bucket(s3_server, "reader").objects("kept").delete([NAME])


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        (
            {"AWS_ACCESS_KEY_ID": "bot-key\n"},
            "AWS_ACCESS_KEY_ID has a character that cannot be in it: set it again",
        ),
        (
            {"AWS_SECRET_ACCESS_KEY": " bot-secret"},
            "AWS_SECRET_ACCESS_KEY has a character that cannot be in it",
        ),
        (
            {"AWS_SECRET_ACCESS_KEY": ""},
            "AWS_SECRET_ACCESS_KEY is missing: set it beside AWS_ACCESS_KEY_ID",
        ),
        (
            {"AWS_CA_BUNDLE": "/nowhere"},
            "AWS_CA_BUNDLE names '/nowhere': No such file or directory: name a PEM file",
        ),
        (
            {"AWS_CA_BUNDLE": __file__},
            "the library for buckets refuses its settings: check variables AWS_..., and the",
        ),
    ],
)
def test_unusable_variable_of_the_environment_is_named(environ: dict[str, str], told: str):
    """The library would panic on a line break, which is a usual mistake in a secret of Kubernetes."""
    with pytest.raises(StoreRefused) as caught:
        bucket_with({**S3Server.environ(), **environ}, endpoint="http://127.0.0.1:1")
    assert told in str(caught.value)
    assert not [word for word in ("bot-secret", "bot-key") if word in str(caught.value)]


@pytest.mark.parametrize(
    ("token", "told"),
    [
        (
            None,
            "the role of this machine, pod or task gives no credentials: see its AWS_... variables",
        ),
        (
            "token",
            "the role of this machine, pod or task gives no credentials: see its AWS_... variables",
        ),
        ("token\n", "the library for buckets failed: see AWS_... for line breaks, also in files"),
    ],
)
def test_role_that_gives_no_credentials_is_named(token: str | None, told: str, tmp_path: Path):
    """Its token file is missing, the service refuses it, or it has a line break, on which the library panics."""
    file = tmp_path / "token"
    if token is not None:
        file.write_text(token)
    with answering("403 Forbidden", "no") as place:
        role = {
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": place,
            "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(file),
        }
        role |= {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}
        with pytest.MonkeyPatch.context() as patch:
            for name, value in role.items():
                patch.setenv(name, value) if value else patch.delenv(name, raising=False)
            there = Bucket(f"s3://{BUCKET}", endpoint="http://127.0.0.1:1", region="us-east-1")
            with pytest.raises(StoreRefused) as caught:
                there.check()
    assert told in str(caught.value)


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_endpoint_from_the_environment_may_be_plain_http(s3_server: S3Server, variable: str):
    """The same holds for `media.endpoint`."""
    bucket_with({**s3_server.environ(), variable: s3_server.endpoint}).check()


@needs_openssl
def test_certificate_of_an_unknown_authority_is_accepted_once_the_authority_is_configured(
    tmp_path: Path,
):
    """The system's own authorities stay trusted."""
    folder, context = make_certificates(tmp_path), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    body = "<Error><Code>AccessDenied</Code></Error>"
    with answering("403 Forbidden", body, context) as endpoint:
        with pytest.raises(
            StoreRefused, match=r"an unknown authority signed .*: name its .* AWS_CA_BUNDLE"
        ):
            bucket_with(S3Server.environ(), endpoint=endpoint).check()
        with pytest.raises(StoreRefused, match="the credentials may not list"):
            bucket_with(
                {**S3Server.environ(), "AWS_CA_BUNDLE": str(folder / "ca.pem")}, endpoint=endpoint
            ).check()
    with (
        answering("200 OK", "") as endpoint,
        pytest.raises(StoreRefused, match="does not speak TLS: write http://"),
    ):
        bucket_with(S3Server.environ(), endpoint=endpoint.replace("http:", "https:")).check()


def test_check_removes_old_objects_of_killed_checks(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
):
    """It leaves recent ones: another process may be checking at this moment."""
    whole = bucket(s3_server)
    whole.objects("check").put("00/left", b"sayso")
    whole.check()
    assert whole.objects("check").stat("00/left")
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 2 * DATE_SECONDS)
    whole.check()
    assert list(whole.objects("check").list()) == []


def test_server_that_closes_connections_is_left_alone_for_a_while(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
):
    """Otherwise every thread would wait for it. After the pause one call tries again, and success ends the pause."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        calls: list[socket.socket] = []

        def hang_up() -> None:
            with contextlib.suppress(OSError):
                while True:
                    calls.append(listening.accept()[0])
                    calls[-1].close()

        threading.Thread(target=hang_up, daemon=True).start()
        away = bucket(s3_server, endpoint=f"http://127.0.0.1:{listening.getsockname()[1]}")
        objects = away.objects("texts")
        with pytest.raises(StoreUnavailable):
            objects.stat(NAME)
        made = len(calls)
        for call in (
            objects.stat,
            objects.open,
            lambda name: objects.put(name, b""),
            lambda name: objects.delete([name]),
        ):
            with pytest.raises(StoreUnavailable):
                call(NAME)
        assert len(calls) == made > 0
        monkeypatch.setattr(away, "_paused_until", 0.0)
        with pytest.raises(StoreUnavailable):
            objects.stat(NAME)
        assert len(calls) > made
    here = bucket(s3_server)
    here._failure = "it did not answer"
    assert here.objects("texts").stat(NAME) is None
    assert here._failure == ""


def test_turn_ends_normally_while_the_bucket_does_not_answer(s3_server: S3Server):
    """Long texts are shortened, as on a full disk."""
    texts = LongTexts(
        TextFiles(bucket(s3_server, endpoint="http://127.0.0.1:1").objects("texts")), "a" * 20
    )
    message = {"role": "user", "content": "long " * 20_000}
    asyncio.run(texts.move_to_files([message]))
    assert len(message["content"]) == 8000


def test_reply_with_a_file_waits_while_the_bucket_does_not_answer(
    s3_server: S3Server, tmp_path: Path
):
    """It is sent later. A reply whose file is gone is not sent again."""
    for place, error in (("http://127.0.0.1:1", Unreachable), (s3_server.endpoint, Refused)):
        there = bucket(s3_server, endpoint=place)
        media = MediaFiles(
            there.objects("media"),
            there.objects("owners"),
            tmp_path,
            keys=["k"],
            public_url="https://b",
        )
        with pytest.raises(error):
            file_to_send(media.read, "a" * 64)
