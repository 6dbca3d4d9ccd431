"""The stores of files and long texts: in the data folder, or in a bucket."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from sayso.agent.channel.long_texts import FOLDER as TEXTS
from sayso.agent.channel.long_texts import TextFiles
from sayso.agent.extras import LibraryError, import_libraries
from sayso.channels.media_store import ARRIVING, OWNERS, LocalMediaStore, MediaFiles
from sayso.config.settings.loader import ConfigError
from sayso.config.settings.schema import Settings
from sayso.infra.storage.objects import LocalObjects, StoreRefused
from sayso.infra.storage.s3 import Bucket

#: The folder of files in the data folder, or in the bucket.
MEDIA = "media"


@dataclass(frozen=True, slots=True)
class FileStores:
    """Where files and long texts are kept: in the data folder, or in a bucket.

    Lives as long as the process.
    """

    media: MediaFiles
    texts: TextFiles
    bucket: Bucket | None
    #: What the data folder holds from the time before the bucket. It is swept and erased,
    #: and not read.
    former: tuple[MediaFiles, TextFiles] | None = None

    @property
    def all_media(self) -> tuple[MediaFiles, ...]:
        """All stores that may hold files."""
        return (*([self.former[0]] if self.former else []), self.media)

    @property
    def all_texts(self) -> tuple[TextFiles, ...]:
        """All stores that may hold long texts."""
        return (*([self.former[1]] if self.former else []), self.texts)

    def sweeps(self) -> dict[str, Callable[[], int]]:
        """Return what removes old files and old texts. Each raises OSError."""
        return {
            MEDIA: lambda: sum(each.sweep() for each in self.all_media),
            TEXTS: lambda: sum(each.sweep() for each in self.all_texts),
        }

    @classmethod
    def open(
        cls,
        settings: Settings,
        data: Path,
        keys: Sequence[str],
        *,
        public_url: str = "",
        link_clock: Callable[[], float] | None = None,
    ) -> Self:
        """Open the stores without any I/O.

        Raises ConfigError where the library for buckets is missing.
        """
        folder = data / MEDIA
        limits = settings.media.limits
        bucket = open_bucket(settings)
        local = LocalMediaStore(
            folder, keys=keys, public_url=public_url, link_clock=link_clock, limits=limits
        )
        if bucket is None:
            return cls(local, local_texts(data), None)
        media = MediaFiles(
            bucket.objects(MEDIA),
            bucket.objects(OWNERS),
            folder / ARRIVING,
            keys=keys,
            public_url=public_url,
            link_clock=link_clock,
            limits=limits,
        )
        return cls(media, TextFiles(bucket.objects(TEXTS)), bucket, (local, local_texts(data)))


def local_texts(data: Path) -> TextFiles:
    """Return the long texts in a data folder."""
    return TextFiles(LocalObjects(data / TEXTS))


def open_bucket(settings: Settings) -> Bucket | None:
    """Return the bucket of the configuration, None without one.

    Raises ConfigError where the library is missing, or variables of the environment cannot be used.
    """
    media = settings.media
    if not media.store:
        return None
    try:
        import_libraries("s3", "obstore.exceptions", "obstore.store")
        return Bucket(media.store, endpoint=str(media.endpoint or ""), region=media.region)
    except LibraryError as exc:
        raise ConfigError([settings.problem(("media", "store"), str(exc))]) from exc
    except StoreRefused as exc:
        raise ConfigError([settings.problem(("media", "store"), exc.reason)]) from None
