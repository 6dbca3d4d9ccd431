"""One large upload in a process of its own, whose memory no thread of another test uses."""

from __future__ import annotations

import sys
import tracemalloc
from pathlib import Path

from sayso.channels.media_store import LocalMediaStore
from tests.channels.console.echo import KEYS, EchoApp
from tests.channels.parts import console_channel
from tests.memory_stores import MemoryFeed

#: Bytes of the file.
SIZE = 20 * 1024 * 1024


def upload_and_print_peak(folder: str) -> None:
    """Upload a large file; print the status and the peak of memory in bytes."""
    media = LocalMediaStore(Path(folder) / "media", keys=KEYS, public_url="https://bot.example")
    channel = console_channel("web", feed=MemoryFeed(), media=media, keys=KEYS)
    client = EchoApp(channel, media=media).app.test_client()
    client.get("/console")
    body = (Path(folder) / "large.pdf").open("w+b")
    body.write(b"%PDF-")
    body.truncate(SIZE)
    body.seek(0)
    headers = {
        "X-Sayso-Console": "1",
        "X-Sayso-Filename": "a.pdf",
        "Content-Type": "application/pdf",
    }
    tracemalloc.start()
    answer = client.post(
        "/console/web/files", input_stream=body, content_length=SIZE, headers=headers
    )
    sys.stdout.write(f"{answer.status_code} {tracemalloc.get_traced_memory()[1]}")
