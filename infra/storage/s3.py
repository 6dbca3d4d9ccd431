"""Bucket: objects in a bucket on Amazon S3, or on any server that speaks its protocol.

The library is obstore. Its errors hold addresses and keys, so all are translated into
StoreUnavailable and its subclasses, whose messages name the cure for an operator.
"""

from __future__ import annotations

import io
import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from sayso.infra.ids import random_id
from sayso.infra.redaction import remember
from sayso.infra.storage.objects import (
    DATE_SECONDS,
    StoredObject,
    StoreRefused,
    StoreSilent,
    StoreUnavailable,
    check_name,
    size_of,
    sweep,
)

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import S3Store

#: Seconds that opening a connection may take.
CONNECT_SECONDS = 3
#: Seconds to wait for the next bytes.
READ_SECONDS = 10
#: Seconds for a whole answer. No upload or call takes longer.
ANSWER_SECONDS = 60
#: How often a call is repeated after a refused connection or a server's error.
RETRIES = 4
#: Seconds after its beginning in which a call is repeated.
RETRY_SECONDS = 8
#: Seconds without calls after a call that got no answer. Then one call tries again, and all others
#: fail until it ends: a bucket that does not answer must not block every thread for READ_SECONDS.
PAUSE_SECONDS = 2.0
#: A larger file is sent in parts of so many bytes.
PART_BYTES = 5 * 1024 * 1024
#: How many parts are sent at a time. Times PART_BYTES, this is the memory of one upload.
PARTS_AT_A_TIME = 2
#: Variables with the address of the server, as the library reads them.
ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
#: The variable that names a file with certificates of authorities to trust besides those of the
#: system, as for Amazon's own tools.
AUTHORITIES = "AWS_CA_BUNDLE"
#: The variable with the address that gives a container the credentials of its role.
CONTAINER_ROLE = "AWS_CONTAINER_CREDENTIALS_FULL_URI"
#: The variables with the credentials.
KEY_ID = "AWS_ACCESS_KEY_ID"
SECRET_KEY = "AWS_SECRET_ACCESS_KEY"  # noqa: S105  # the name of a variable
SESSION_TOKEN = "AWS_SESSION_TOKEN"  # noqa: S105
#: Variables that become headers of requests: on a line break in one of them the library panics.
_HEADERS = (KEY_ID, SECRET_KEY, SESSION_TOKEN, "AWS_REGION", "AWS_DEFAULT_REGION")
_READ_BYTES = 256 * 1024
#: Finds the server's error code, in its answer or in what the library says of an object that was
#: not deleted.
_CODE = re.compile(r"(?:<Code>|\(code: )(\w{1,60})")
_STATUS = re.compile(r"status code: (\d{3})")
#: Error codes for a login that is refused.
_LOGIN_CODES = frozenset(
    """InvalidAccessKeyId SignatureDoesNotMatch ExpiredToken InvalidToken InvalidClientTokenId
    TokenRefreshRequired""".split()
)
#: Error codes for a bucket in another region.
_REGION_CODES = frozenset(
    {"AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException"}
)
#: Error codes for a clock that is wrong.
_CLOCK_CODES = frozenset({"RequestTimeTooSkewed", "RequestExpired"})
#: Parts of the library's messages when the role of the machine gives no credentials. In the second
#: one the library hides the address of Amazon's token service.
_ROLE_FAILURES = ("token file", "POST REDACTED")
#: Parts of the library's messages on TLS that waiting does not mend, each with the reason and the
#: cure.
_TLS_FAILURES = (
    (
        "UnknownIssuer",
        "an unknown authority signed the server's certificate",
        f"name its certificate in {AUTHORITIES}",
    ),
    (
        "InvalidCertificate",
        "the server's certificate is expired, or of another name",
        "correct it, or media.endpoint",
    ),
    ("InvalidContentType", "the server does not speak TLS", "write http:// in media.endpoint"),
)
#: Parts of the library's messages on calls without an answer, and what they mean.
_SILENCES = (
    ("dns error", "the name of its server is unknown: see media.endpoint"),
    ("ConnectionRefused", "it refuses connections"),
    ("Timeout", "in time"),
)


class Bucket:
    """A bucket, or the part of it below a prefix.

    One instance serves a whole process, from any thread. A process must not fork after its first
    call: the library's threads do not follow. Credentials come from the environment
    (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN), or from the role of the machine.
    """

    def __init__(self, url: str, *, endpoint: str = "", region: str = "") -> None:
        """Prepare the bucket `s3://bucket/prefix`. No call is made.

        `endpoint` is the address of the server; "": that of the environment, or of Amazon. `region`
        is that of the bucket; "": that of the environment. Raises ImportError without the library,
        obstore, and StoreRefused for variables that cannot be used.
        """
        from obstore.exceptions import BaseError
        from obstore.store import S3Store

        self.url = url
        self._bucket = url.removeprefix("s3://").partition("/")[0]
        #: Why the last call had no answer, "" if it had one.
        self._failure = ""
        #: Until when no other call is made after such a call, by the monotonic clock.
        self._paused_until = 0.0

        secrets = [os.environ.get(name, "") for name in (SECRET_KEY, SESSION_TOKEN)]
        remember(filter(None, secrets))
        self._check_variables()
        config: dict[str, Any] = {"endpoint": endpoint, "region": region}
        addresses = [endpoint]
        if not endpoint:
            addresses = [os.environ.get(name, "") for name in ENDPOINTS]
        try:
            self._store = S3Store.from_url(
                url,
                config={key: value for key, value in config.items() if value},  # type: ignore[arg-type]  # only str
                client_options={  # type: ignore[arg-type]  # a TypedDict
                    "allow_http": any(each.startswith("http://") for each in addresses),
                    "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
                    "read_timeout": timedelta(seconds=READ_SECONDS),
                    "timeout": timedelta(seconds=ANSWER_SECONDS),
                    **self._authorities(),
                },
                retry_config={
                    "max_retries": RETRIES,
                    "retry_timeout": timedelta(seconds=RETRY_SECONDS),
                },
            )
        except (BaseError, ValueError):
            # The cause is left out: its message may hold values of the variables.
            cure = f"check variables AWS_..., and the file of {AUTHORITIES}"
            raise self._refused("the library for buckets refuses its settings", cure) from None

    def _check_variables(self) -> None:
        """Refuse credentials that cannot be sent, or that lack a part."""
        for name in _HEADERS:
            value = os.environ.get(name, "")
            can_be_sent = value.isprintable() and value.isascii() and value == value.strip()
            if not can_be_sent:
                cure = "set it again, without quotes, spaces and line breaks around it"
                raise self._refused(f"{name} has a character that cannot be in it", cure)

        key_id = os.environ.get(KEY_ID)
        secret_key = os.environ.get(SECRET_KEY)
        if key_id and not secret_key:
            raise self._refused(f"{SECRET_KEY} is missing", f"set it beside {KEY_ID}")
        if secret_key and not key_id:
            raise self._refused(f"{KEY_ID} is missing", f"set it beside {SECRET_KEY}")

    def _authorities(self) -> dict[str, Any]:
        """Return the option with the certificates to trust, if the environment names any.

        Raises StoreRefused.
        """
        file = os.environ.get(AUTHORITIES)
        if not file:
            return {}
        try:
            return {"root_certificate": Path(file).read_bytes()}
        except OSError as exc:
            reason = f"{AUTHORITIES} names {file!r}: {exc.strerror}"
            raise self._refused(reason, "name a PEM file") from None

    def objects(self, folder: str) -> S3Objects:
        """Return the objects below a folder of the bucket."""
        return S3Objects(self, self._store, folder)

    def check(self) -> None:
        """List, write, read and delete an object, to see whether the bucket can be used.

        Raises StoreRefused, and StoreUnavailable while nothing answers.
        """
        objects = self.objects("check")
        name = f"00/{random_id(8)}"
        # Deletes what killed processes left. It comes first because it lists: a refused list says
        # why, and a refused HEAD does not.
        sweep(objects, 0, time.time())
        objects.put(name, b"sayso")
        with objects.open(name) as file:
            file.read()
        objects.delete([name])

    @contextmanager
    def call(self, action: str) -> Iterator[None]:
        """Make a call in the block, unless the last one had no answer: a circuit breaker.

        `action` is what is tried, as a verb. Raises StoreUnavailable, and FileNotFoundError.
        """
        self._pass_breaker()
        try:
            with self.errors(action):
                yield
        except StoreSilent as exc:
            self._failure = exc.reason
            self._paused_until = time.monotonic() + PAUSE_SECONDS
            raise
        except (StoreUnavailable, FileNotFoundError):
            # The server answered, so the next call is made, even after an answer such as SlowDown.
            self._failure = ""
            raise
        self._failure = ""

    def _pass_breaker(self) -> None:
        """Raise StoreUnavailable while the circuit breaker is open.

        After its pause it lets one call through.
        """
        if not self._failure:
            return
        now = time.monotonic()
        if now < self._paused_until:
            raise StoreSilent(self._failure)
        self._paused_until = now + READ_SECONDS

    @contextmanager
    def errors(self, action: str) -> Iterator[None]:
        """Translate the errors of the library in the block. `action` is what is tried, as a verb.

        Their messages contain addresses and keys, which must not be shown.
        """
        from obstore.exceptions import BaseError

        try:
            yield
        except StoreUnavailable:
            raise
        except BaseException as exc:
            # The library raises it for a defect. It is no Exception, and would end a worker.
            if type(exc).__name__ == "PanicException":
                raise self._refused(
                    "the library for buckets failed", "see AWS_... for line breaks, also in files"
                ) from None
            if not isinstance(exc, BaseError | OSError):
                raise
            match = _CODE.search(str(exc))
            code = match[1] if match else ""
            if isinstance(exc, FileNotFoundError) and code != "NoSuchBucket":
                raise
            raise self._explained(exc, code, action) from None

    def _explained(self, exc: Exception, code: str, action: str) -> StoreUnavailable:
        """Return the error to raise for one of the library. `code` is the server's, "" for none."""
        from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

        message = str(exc)
        role_failures = [*_ROLE_FAILURES]
        container_role = os.environ.get(CONTAINER_ROLE)
        if container_role:
            role_failures.append(container_role)
        if any(part in message for part in role_failures):
            cure = "see its AWS_... variables, and that it may be taken here"
            return self._refused("the role of this machine, pod or task gives no credentials", cure)
        if code == "NoSuchBucket":
            return self._refused(
                f"there is no bucket {self._bucket!r}", "create it, or correct media.store"
            )
        if code in _REGION_CODES or "incorrectly configured region" in message:
            return self._refused("the bucket is in another region", "set media.region")
        if code in _CLOCK_CODES:
            return self._refused(
                "the clocks of this machine and of the server differ", "set them, with NTP"
            )
        if code in _LOGIN_CODES:
            cure = "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and the clock"
            return self._refused(f"the credentials are refused ({code})", cure)
        if code == "AccessDenied" or isinstance(exc, PermissionDeniedError | UnauthenticatedError):
            return self._refused(
                f"the credentials may not {action} objects", "allow it on the bucket"
            )
        if "169.254." in message or "credential" in message.lower():
            cure = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give it a role"
            return self._refused("no credentials", cure)
        for part, reason, cure in _TLS_FAILURES:
            if part in message:
                return self._refused(reason, cure)
        return self._failed(f"{self.url}: could not {action} objects", message, code)

    def _failed(self, beginning: str, message: str, code: str) -> StoreUnavailable:
        """Return the error for a failure that may pass.

        `message` is the library's, `code` the server's, "" for none.
        """
        status = _STATUS.search(message)
        if status:
            hint = code or "not as S3 does: see media.endpoint"
            return StoreUnavailable(f"{beginning}: it answered {status[1]} ({hint})")
        if code:
            return StoreUnavailable(f"{beginning}: it answered {code}")
        if "HTTP error" in message:
            detail = ""
            for part, meaning in _SILENCES:
                if part in message:
                    detail = f" ({meaning})"
                    break
            return StoreSilent(f"{beginning}: it did not answer{detail}")
        return StoreUnavailable(f"{beginning}: its answer is not that of S3: see media.endpoint")

    def _refused(self, reason: str, cure: str) -> StoreRefused:
        """Return the error for a failure that waiting does not mend."""
        return StoreRefused(f"{self.url}: {reason}", cure)


class S3Objects:
    """The ObjectStore in one folder of a bucket. One instance serves a whole process."""

    is_remote = True

    def __init__(self, bucket: Bucket, store: S3Store, folder: str) -> None:
        self._bucket = bucket
        self._store = store
        self._folder = folder

    def put(self, name: str, content: bytes | Path) -> bool:
        """Upload an object, unless it is there and its date is new enough."""
        import obstore

        stored = self.stat(name)
        size = size_of(content)
        if stored and stored.size == size and stored.modified_at > time.time() - DATE_SECONDS:
            return False
        with self._bucket.call("write"):
            obstore.put(
                self._store,
                self._path(name),
                content,
                chunk_size=PART_BYTES,
                max_concurrency=PARTS_AT_A_TIME,
            )
        return stored is None

    def open(self, name: str, start: int = 0) -> BinaryIO:
        """Open an object. Its bytes arrive while they are read, and reading may raise, too."""
        import obstore

        options: GetOptions = {}
        if start:
            options["range"] = {"offset": start}
        try:
            with self._bucket.call("read"):
                result = obstore.get(self._store, self._path(name), options=options)
        except FileNotFoundError:
            raise KeyError(name) from None
        parts = iter(result.stream(min_chunk_size=_READ_BYTES))
        download = _Download(self._bucket, parts)
        return cast("BinaryIO", io.BufferedReader(download, _READ_BYTES))

    def stat(self, name: str) -> StoredObject | None:
        """Return size and date of an object."""
        import obstore

        try:
            with self._bucket.call("read"):
                head = obstore.head(self._store, self._path(name))
        except FileNotFoundError:
            return None
        return StoredObject(name, head["size"], head["last_modified"].timestamp())

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        """Yield the objects, a thousand for each request."""
        import obstore

        # The library lists whole folders only.
        folder = f"{self._folder}/{prefix.rpartition('/')[0]}".rstrip("/")
        beginning = f"{self._folder}/{prefix}"
        with self._bucket.call("list"):
            for batch in obstore.list(self._store, folder, chunk_size=1000):
                for each in batch:
                    if each["path"].startswith(beginning):
                        name = each["path"].removeprefix(f"{self._folder}/")
                        yield StoredObject(name, each["size"], each["last_modified"].timestamp())

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects, a thousand with each request."""
        import obstore

        paths = [self._path(name) for name in names]
        if paths:
            with self._bucket.call("delete"):
                obstore.delete(self._store, paths)

    def _path(self, name: str) -> str:
        return f"{self._folder}/{check_name(name)}"


class _Download(io.RawIOBase):
    """The bytes of one object, as they arrive."""

    def __init__(self, bucket: Bucket, parts: Iterator[Any]) -> None:
        self._bucket = bucket
        self._parts = parts
        #: What was not read yet of the part that arrived last.
        self._part = memoryview(b"")

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Copy the next bytes into a buffer.

        Return how many, 0 at the end. Raises StoreUnavailable.
        """
        if not self._part:
            with self._bucket.errors("read"):
                self._part = memoryview(next(self._parts, b""))
        count = min(len(self._part), len(buffer))
        buffer[:count] = self._part[:count]
        self._part = self._part[count:]
        return count
