"""Bucket: what is wrong with a bucket or its credentials is told in one line with the cure, and without a secret."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from pathlib import Path

import pytest

from sayso.agent.channel.long_texts import LongTexts, TextFiles
from sayso.channels.base import Refused, Unreachable
from sayso.channels.storage.media import MediaFiles, file_to_send
from sayso.channels.storage.objects import StoreRefused, StoreUnavailable
from sayso.channels.storage.s3 import Bucket
from tests.s3 import BUCKET, S3Server

NAME = f"ab/{'a' * 64}"


def bucket(server: S3Server, user: str = "bot", *, secret: str = "", name: str = BUCKET, endpoint: str = "") -> Bucket:
    """Return a bucket as a user with these credentials opens it."""
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in server.environ(user, secret=secret).items():
            patch.setenv(variable, value)
        return Bucket(f"s3://{name}/pre/fix", endpoint=endpoint or server.endpoint, region="us-east-1")


def test_bucket_that_works_is_left_as_it_was(s3_server: S3Server):
    """The check removes what it wrote."""
    whole = bucket(s3_server)
    whole.check()
    assert list(whole.objects("check").list()) == []


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"user": "admin", "name": "nothing-here"}, "there is no bucket 'nothing-here': create it"),
        ({"secret": "wrong-secret"}, "the credentials are refused (SignatureDoesNotMatch): check AWS_ACCESS_KEY_ID"),
        ({"user": "stranger"}, "the credentials are refused (InvalidAccessKeyId): check AWS_ACCESS_KEY_ID"),
        ({"user": "reader"}, "the credentials may not write objects: allow it on the bucket"),
        ({"name": "nothing-here"}, "the credentials may not list objects: allow it on the bucket"),
    ],
)
def test_wrong_bucket_is_refused_with_the_cure(s3_server: S3Server, options: dict[str, str], reason: str):
    """Waiting would not help."""
    with pytest.raises(StoreRefused) as caught:
        bucket(s3_server, **options).check()
    text = str(caught.value)
    assert reason in text
    assert "\n" not in text
    assert not [secret for secret in ("-secret", "-key", "127.0.0.1") if secret in text]


def test_server_that_is_away_is_no_wrong_bucket(s3_server: S3Server):
    """It may come back."""
    with pytest.raises(StoreUnavailable, match="could not list objects: it did not answer") as caught:
        bucket(s3_server, endpoint="http://127.0.0.1:1").check()
    assert not isinstance(caught.value, StoreRefused)


def test_server_that_hangs_up_is_not_called_again_at_once(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch):
    """Else every thread would wait for it. After a pause one call tries it, and ends the pause if it is answered."""
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


def test_turn_goes_on_while_the_bucket_is_away(s3_server: S3Server):
    """Long texts are cut as on a full disk."""
    texts = LongTexts(TextFiles(bucket(s3_server, endpoint="http://127.0.0.1:1").objects("texts")), "a" * 20)
    message = {"role": "user", "content": "long " * 20_000}
    asyncio.run(texts.move_to_files([message]))
    assert len(message["content"]) == 8000


def test_reply_with_a_file_waits_while_the_bucket_is_away(s3_server: S3Server, tmp_path: Path):
    """It is sent again later; a file that is gone is not."""
    for place, error in (("http://127.0.0.1:1", Unreachable), (s3_server.endpoint, Refused)):
        there = bucket(s3_server, endpoint=place)
        media = MediaFiles(
            there.objects("media"), there.objects("owners"), tmp_path, keys=["k"], public_url="https://b"
        )
        with pytest.raises(error):
            file_to_send(media.read, "a" * 64)
