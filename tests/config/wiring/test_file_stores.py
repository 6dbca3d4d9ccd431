"""FileStores: files in a bucket, and older files that are still in the data folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from sayso.channels.media_store import MediaFiles
from sayso.channels.types import Conversation, Scope, owner_of
from sayso.config.settings.loader import load_settings
from sayso.config.wiring.erasure import erase_texts
from sayso.config.wiring.stores import FileStores
from sayso.infra.ids import random_id
from tests.s3 import BUCKET, S3Server

ANA = owner_of("web", "ana")


def test_files_from_before_the_bucket_are_swept_and_erased_and_not_read(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Otherwise old files, and those of erased people, would stay in the folder for ever."""
    for name, value in s3_server.environ().items():
        monkeypatch.setenv(name, value)
    config, channels = tmp_path / "sayso.yaml", "channels: {web: {platform: console}}\n"
    config.write_text(channels)
    before = FileStores.open(load_settings(config), tmp_path, ["k"])
    place = f"s3://{BUCKET}/{random_id(6)}"
    config.write_text(
        f"{channels}media: {{store: '{place}', endpoint: '{s3_server.endpoint}', region: us-east-1}}\n"
    )
    settings = load_settings(config)
    stores = FileStores.open(settings, tmp_path, ["k"])

    old, new = _put(before.media, b"old"), _put(stores.media, b"new")
    with pytest.raises(KeyError):
        stores.media.read(old)
    assert [each.erase(ANA) for each in stores.all_media] == [1, 1]
    for store, ref in ((before.media, old), (stores.media, new)):
        with pytest.raises(KeyError):
            store.read(ref)

    _put(before.media, b"old")
    for each in stores.all_media:
        each._clock = lambda: 1e12
    assert (stores.sweeps()["media"](), stores.sweeps()["texts"]()) == (1, 0)

    before.texts.put(Scope("ana", Conversation("", "")).id, "long text")
    assert (erase_texts(settings, tmp_path, ["bea"]), erase_texts(settings, tmp_path, ["ana"])) == (
        0,
        1,
    )


def _put(media: MediaFiles, data: bytes) -> str:
    return media.put(data, mime_type="text/plain", owner=ANA).ref
