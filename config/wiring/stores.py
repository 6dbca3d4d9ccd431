"""The stores of files and long texts: in the data folder, or in a bucket."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from sayso.agent.channel.long_texts import FOLDER as TEXTS
from sayso.agent.channel.long_texts import TextFiles
from sayso.agent.extras import LibraryError, import_libraries
from sayso.channels.media_store import OWNERS, SPOOL_FOLDER, LocalMediaStore, MediaFiles
from sayso.config.settings.loader import ConfigError
from sayso.config.settings.schema import Settings
from sayso.infra.storage.objects import LocalObjects, StoreRefused
from sayso.infra.storage.s3 import Bucket

#: The folder of files in the data folder, or in the bucket.
MEDIA = "media"


@dataclass(frozen=True, slots=True)
class FileStores:
    """The stores of files and long texts of one process. Live as long as the process.

    A bot that gets a bucket may have files in its data folder from before. These former stores are
    swept and erased like the others, but nothing is read from them.
    """

    #: Files that people send and tools make.
    media: MediaFiles
    #: Texts that are too long for Redis.
    texts: TextFiles
    #: The bucket in which both are, None where they are in the data folder.
    bucket: Bucket | None
    #: The files in the data folder of a bot with a bucket, None without a bucket.
    former_media: MediaFiles | None = None
    #: The long texts in the data folder of a bot with a bucket, None without a bucket.
    former_texts: TextFiles | None = None

    @property
    def all_media(self) -> tuple[MediaFiles, ...]:
        """All stores that may hold files."""
        if self.former_media is None:
            return (self.media,)
        return (self.former_media, self.media)

    @property
    def all_texts(self) -> tuple[TextFiles, ...]:
        """All stores that may hold long texts."""
        if self.former_texts is None:
            return (self.texts,)
        return (self.former_texts, self.texts)

    def sweeps(self) -> dict[str, Callable[[], int]]:
        """Return functions that delete old files and old texts, by the name in the log.

        Each returns how many it deleted, and raises OSError.
        """
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
        """Open the stores. Reads and writes nothing.

        `data` is the data folder. `keys` are the secret keys, which sign links to files;
        `public_url` is where platforms reach the web that serves these links, "" where no link is
        made. `link_clock` returns the time by which links expire, in Unix seconds; None for the
        clock of this machine. Raises ConfigError where the library for buckets is missing.
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
            folder / SPOOL_FOLDER,
            keys=keys,
            public_url=public_url,
            link_clock=link_clock,
            limits=limits,
        )
        texts = TextFiles(bucket.objects(TEXTS))
        return cls(media, texts, bucket, former_media=local, former_texts=local_texts(data))


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
