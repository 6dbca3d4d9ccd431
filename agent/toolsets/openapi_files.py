"""Files of OpenAPI operations: files that a call uploads, and the names of files in answers.

A model gives the name of a file that the user sent in this conversation: a *received file*. A call
sends its bytes as an Upload. The question before the call names each file with its digest, and the
yes counts only for these bytes.

An argument of an operation has a *place* in the request (`openapi_bodies.Place`), such as a part of
a form. The place says whether the argument is one file or a list of files, and their types.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from email.header import decode_header, make_header
from email.message import Message
from email.utils import collapse_rfc2231_value
from itertools import chain
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote

from sayso.agent.tools.environment import (
    UNKNOWN_MIME_TYPE,
    FileNotReceived,
    ReceivedFile,
    received_file,
)
from sayso.agent.tools.previews import CheckedPreview, default_preview
from sayso.agent.toolsets.base import SourceError
from sayso.agent.toolsets.openapi_bodies import ANY_TYPE, Place
from sayso.channels.inbound_limits import MAX_FILE_BYTES
from sayso.channels.media_store import file_label
from sayso.channels.types import extension_of, readable_size

#: Most bytes of all files of one call: as many as the largest file that can be received has.
MAX_UPLOAD_BYTES = MAX_FILE_BYTES
#: Most files of one call.
MAX_UPLOADS = 10
#: How many hex digits of a file's digest a question shows. At the yes the whole digest is compared.
SHOWN_DIGEST_CHARS = 16


@dataclass(frozen=True, slots=True)
class Upload:
    """A received file that a call sends."""

    filename: str
    #: The media type that the request names, such as "image/png".
    content_type: str
    content: bytes = field(repr=False)


def read_uploads(places: Mapping[str, Place], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with an Upload, or a list of Uploads, instead of the names of files.

    `places` has the place of each argument that is a file, by its name. Blocks while it reads
    files. Raises SourceError for a file that the user did not send, that was deleted, or that the
    operation does not take, and for files that are too large or too many.
    """
    uploads: dict[str, Any] = {}
    for name, files in chosen_files(places, arguments).items():
        place = places[name]
        uploads_of_argument = [_read(place, file) for file in files]
        if place.is_list:
            uploads[name] = uploads_of_argument
        else:
            uploads[name] = uploads_of_argument[0]
    return {**arguments, **uploads}


def chosen_files(
    places: Mapping[str, Place],
    arguments: Mapping[str, Any],
) -> dict[str, list[ReceivedFile]]:
    """Return the received files that the arguments name, by argument. It is a list for each.

    Raises SourceError as `read_uploads` does, except for a file that was deleted.
    """
    chosen: dict[str, list[ReceivedFile]] = {}
    for name, place in places.items():
        value = arguments.get(name)
        if value is None:
            continue
        filenames = value if place.is_list else [value]
        chosen[name] = [_find(place, filename) for filename in filenames]

    files = list(chain.from_iterable(chosen.values()))
    if len(files) > MAX_UPLOADS:
        raise SourceError(f"{len(files)} files cannot be sent at once: at most {MAX_UPLOADS}")
    size = sum(file.size for file in files)
    if size > MAX_UPLOAD_BYTES:
        problem = f"the files have {size} bytes together"
        raise SourceError(f"{problem}: at most {MAX_UPLOAD_BYTES} can be sent at once")
    return chosen


def _find(place: Place, name: Any) -> ReceivedFile:
    """Return the received file of this name. Raises SourceError."""
    if not isinstance(name, str) or not name:
        raise SourceError(f"{place.name!r} is {name!r}: give the name of a file that the user sent")
    try:
        file = received_file(name)
    except FileNotReceived as exc:
        raise SourceError(str(exc)) from None
    # Raises for a file of the wrong type now, before the user is asked about it.
    _content_type(place, file)
    return file


def _read(place: Place, file: ReceivedFile) -> Upload:
    """Return a received file with its bytes. Raises SourceError if they are gone or other ones."""
    try:
        content = file.read()
    except FileNotReceived as exc:
        raise SourceError(str(exc)) from None
    if hashlib.sha256(content).hexdigest() != file.ref:
        problem = f"file {file.filename!r} is not the one that was received"
        raise SourceError(f"{problem}: it must be sent again")
    return Upload(file_label(file.filename) or place.name, _content_type(place, file), content)


def _content_type(place: Place, file: ReceivedFile) -> str:
    """Return the media type that a file is sent with.

    Raises SourceError if the document allows none that the file can have.
    """
    file_type = file.mime_type
    for allowed in place.file_types:
        is_in_range = allowed.endswith("/*") and file_type.startswith(allowed[:-1])
        if is_in_range or allowed in (file_type, ANY_TYPE):
            return file_type

    exact_types = [allowed for allowed in place.file_types if not allowed.endswith("*")]
    # It stands for any sequence of bytes: an operation that takes it takes any file.
    if UNKNOWN_MIME_TYPE in exact_types:
        return UNKNOWN_MIME_TYPE
    # A file whose type was not recognized may have the type that the operation takes.
    if file_type == UNKNOWN_MIME_TYPE and exact_types:
        return exact_types[0]
    types = ", ".join(place.file_types)
    problem = f"{file.filename!r} is {file_type}"
    raise SourceError(f"{place.name!r} takes files of the type {types}, and {problem}")


def upload_preview(tool_name: str, places: Mapping[str, Place]) -> Callable[..., CheckedPreview]:
    """Return the preview of a tool that sends files: a function of the arguments of a call.

    The preview names each file with its type, size and digest. The yes counts only for exactly
    these files. The preview raises SourceError for files that cannot be sent.
    """

    def preview(**arguments: Any) -> CheckedPreview:
        chosen = chosen_files(places, arguments)
        descriptions: dict[str, Any] = {}
        checked_values: dict[str, Any] = {}
        for name, files in chosen.items():
            texts = [_description(file) for file in files]
            descriptions[name] = texts if places[name].is_list else texts[0]
            checked_values[name] = [_checked_values(file) for file in files]
        text = default_preview(tool_name, {**arguments, **descriptions}, optional=places)
        return CheckedPreview(text, checked_values)

    return preview


def _description(file: ReceivedFile) -> str:
    """Return a file as a question names it."""
    digest = file.ref[:SHOWN_DIGEST_CHARS]
    return f"{file.filename} ({file.mime_type}; {readable_size(file.size)}; SHA-256 {digest})"


def _checked_values(file: ReceivedFile) -> list[Any]:
    """Return what must be the same about a file at the yes as in the question."""
    return [file.filename, file.mime_type, file.size, file.ref]


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a multipart form."""

    name: str
    content: bytes
    #: "" for plain text.
    content_type: str = ""
    #: It makes the part a file; "" for a plain field.
    filename: str = ""


def multipart(parts: Sequence[Part]) -> tuple[bytes, str]:
    """Return the body of a multipart form (RFC 7578), and its boundary."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.content)
    # The boundary must not occur in a part. It is impossible to make a content that contains a
    # digest of itself.
    boundary = f"sayso-{digest.hexdigest()[:40]}"

    chunks = []
    for part in parts:
        disposition = f'Content-Disposition: form-data; name="{_escaped(part.name)}"'
        if part.filename:
            disposition += f'; filename="{_escaped(part.filename)}"'
        lines = [f"--{boundary}", disposition]
        if part.content_type:
            lines.append(f"Content-Type: {part.content_type}")
        chunks += ["\r\n".join(lines).encode(), b"\r\n\r\n", part.content, b"\r\n"]
    chunks.append(f"--{boundary}--\r\n".encode())
    return b"".join(chunks), boundary


def _escaped(name: str) -> str:
    """Return a name as browsers write it into the header of a part, with quotes escaped."""
    return name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")


#: Characters that a file system may not allow in names.
_UNSAFE = re.compile(r'[<>:"|?*]')
#: Names that Windows reserves for devices, with any ending.
_DEVICE = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?", re.IGNORECASE)
#: An ending that can name the type of a file.
_ENDING = re.compile(r"\.[A-Za-z0-9]{1,10}")


def download_name(disposition: str, path: str, content_type: str) -> str:
    """Return the name for a file in an answer. Every file system takes it.

    `disposition` is the Content-Disposition header of the answer, "" for none; its file name
    counts. Without one, the last segment of the request's `path` is used. A name without an ending
    gets the ending of `content_type`.
    """
    name = _legal_filename(_filename_of(disposition))
    if not name:
        path_without_query, _, _ = path.partition("?")
        _, _, last_segment = path_without_query.rstrip("/").rpartition("/")
        name = _legal_filename(file_label(unquote(last_segment)))
    name = name or "file"
    if not _ENDING.fullmatch(PurePosixPath(name).suffix):
        name = file_label(f"{name}{extension_of(content_type)}")
    return name


def _legal_filename(name: str) -> str:
    """Return a name that no file system refuses; "" stays "".

    Some characters are replaced, dots at the ends removed, and names of devices get an underscore.
    """
    safe = _UNSAFE.sub("_", name).strip(". ")
    if _DEVICE.fullmatch(safe):
        return f"_{safe}"
    return safe


def _filename_of(disposition: str) -> str:
    """Return the file name in a Content-Disposition header, without any path; "" if it has none.

    `filename*`, which can hold any alphabet, takes precedence over `filename` (RFC 6266). Some
    servers encode `filename` like mail headers or like addresses; browsers decode it too.
    """
    header = Message()
    header["content-disposition"] = disposition or "inline"
    parameters = header.get_params([], header="content-disposition")
    names = [value for name, value in parameters if name.lower() == "filename"]
    if not names:
        return ""
    # The mail package returns a `filename*` as a tuple.
    for name in names:
        if isinstance(name, tuple):
            return file_label(_decoded_parameter(name))
    return file_label(_decoded(names[0]))


def _decoded_parameter(value: Any) -> str:
    """Return the text of a `filename*`; "" if the server names an encoding that cannot decode it.

    Some of Python's encodings, such as `idna`, refuse what the mail package asks of them.
    """
    try:
        return collapse_rfc2231_value(value)
    except (ValueError, LookupError):
        return ""


def _decoded(name: str) -> str:
    """Return a file name without the encoding of mail headers or of addresses, if it has one."""
    try:
        if name.startswith("=?"):
            return str(make_header(decode_header(name)))
        if " " not in name:
            return unquote(name, errors="strict")
    except (ValueError, LookupError):
        return name
    return name
