"""Signature check, form -> Turn, status -> StatusUpdate."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Literal
from urllib.parse import parse_qsl, urlencode, urlsplit

from sayso.channels.base import BadHook
from sayso.channels.types import Conversation, Media, SignedWebhook, StatusUpdate, Tap, Turn, storable

#: The header that Twilio adds for accounts with shared keys: `key=<id>,algorithm=<name>`.
TWILIO_SETTINGS = "x-twilio-webhooks-signature-settings"
_HASHES = {"HMAC_SHA1": "sha1", "HMAC_SHA256": "sha256"}


def twilio_signed(
    token: str,
    url: str,
    form: Mapping[str, Sequence[str]],
    signature: str,
    settings: str = "",
    *,
    hosts: Iterable[str] = (),
) -> bool:
    """Whether Twilio signed this form for this URL. `settings` is the header of that name.

    It signs the URL with its port or without, and the host in the letters that were typed into its console, so each
    spelling of the same URL is good. `hosts` are the hosts that the request names: of these only those count that
    spell the URL's own host with other capitals. Raises ValueError for a URL that is none.
    """
    name = _HASHES.get(_algorithm(settings).upper())
    if name is None:
        return False
    fields = "".join([key + value for key in sorted(form) for value in sorted(set(form[key]))])
    given = signature.encode()
    host = urlsplit(url).netloc.partition(":")[0]
    spelled = {each for each in (asked.partition(":")[0] for asked in hosts) if each.lower() == host.lower()}
    urls = [
        *_spellings(url),
        *(each for name in spelled - {host} for each in _spellings(url.replace(f"//{host}", f"//{name}", 1))),
    ]
    return any(hmac.compare_digest(_signature(token, words + fields, name), given) for words in urls)


def _signature(token: str, words: str, name: str) -> bytes:
    return base64.b64encode(hmac.digest(token.encode(), words.encode(), name))


def _algorithm(settings: str) -> str:
    named = (part.partition("=") for part in settings.split(","))
    return next(
        (value.strip() for name, _, value in named if name.strip() == "algorithm" and value.strip()), "HMAC_SHA1"
    )


@lru_cache(maxsize=64)
def _spellings(url: str) -> Iterable[str]:
    """Return the spellings of a URL: without its port and with it, its host as given, in small letters, in punycode and
    decoded from it.
    """
    parts = urlsplit(url)
    netloc, port = parts.netloc, parts.port
    bare = netloc.split(":")[0]
    default = 443 if parts.scheme == "https" else 80
    netlocs = [bare, netloc] if port else [netloc, f"{netloc}:{default}"]
    names = _hosts(parts.hostname or "") if "@" not in netloc and "[" not in netloc else []
    ports = ["", f":{port or default}"]
    every = [*netlocs, *(f"{name}{ending}" for name in names for ending in ports)]
    return tuple(parts._replace(netloc=each).geturl() for each in dict.fromkeys(every))


def _hosts(host: str) -> list[str]:
    """Return the names of the same host. `host` is in small letters."""
    names = [host]
    with contextlib.suppress(UnicodeError):  # it cannot be written in punycode
        names.append(host.encode("idna").decode())
    with contextlib.suppress(UnicodeError):  # it is not in punycode
        names.append(host.encode("ascii").decode("idna"))
    return list(dict.fromkeys(name for name in names if name))


def whatsapp_hook(url: str, auth_token: str, form: Mapping[str, str]) -> SignedWebhook:
    """Headers and body of a Twilio webhook to `url` (query included)."""
    words = url + "".join(name + form[name] for name in sorted(form))
    digest = hmac.new(auth_token.encode(), words.encode(), hashlib.sha1).digest()
    headers = {
        "content-type": "application/x-www-form-urlencoded",
        "x-twilio-signature": base64.b64encode(digest).decode(),
    }
    return headers, urlencode(form).encode()


#: Fields a form may have: Twilio sends about thirty.
MAX_FIELDS = 500
#: The SmsStatus of what a person sent. Statuses of our messages have a MessageStatus besides.
RECEIVED = "received"
#: A message of Twilio's. A signature covers names and values without what separates them, so a captured form still
#: verifies when a letter moves from one field to the next. An id that grew or shrank would be a new event.
_MESSAGE_SID = re.compile(r"(SM|MM)[0-9a-fA-F]{32}")
_CARDS = ("text/vcard", "text/x-vcard")
_Kind = Literal["text", "tap", "choice", "location", "contact", "sticker", "document", "file", "reaction", "other"]


class TwilioForm:
    """A decoded form that keeps repeated and empty fields, as the signature needs them. Raises ValueError."""

    def __init__(self, body: bytes) -> None:
        self.values: dict[str, list[str]] = {}
        for key, value in parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS):
            self.values.setdefault(key, []).append(value)

    def get(self, name: str) -> str:
        """The first value of a field, "" where it is missing."""
        return self.values.get(name, [""])[0]


def turn_of(channel: str, form: TwilioForm) -> Turn | None:
    """What the person did; None for what holds neither words nor anything else. Raises BadHook."""
    sid, sender = _message_sid(form.get("MessageSid")), form.get("From")
    if not sender:
        raise BadHook("the form has no From")
    kind = _kind(form)
    payload = _payload(form)
    user_id = form.get("ExternalUserId") or sender
    turn = Turn(
        event_id=sid,
        conversation=Conversation(channel, sender),
        user_id=user_id,
        user_name=form.get("ProfileName"),
        text=form.get("Body") if kind in ("text", "file", "location", "other") else "",
        tap=Tap(payload, label=storable(_label(form))) if payload else None,
        media=_media(form, kind),
        notes=_notes(form, kind),
        message_id=sid,
        aliases=tuple(name for name in dict.fromkeys((sender, form.get("WaId"))) if name not in ("", user_id)),
        replied_to=form.get("OriginalRepliedMessageSid"),
    )
    return turn if turn.text or turn.tap or turn.media or turn.notes else None


def status_of(form: TwilioForm, delivery: str) -> StatusUpdate:
    """What became of a message. Raises BadHook."""
    update = StatusUpdate(
        message_id=_message_sid(form.get("MessageSid") or form.get("SmsSid")),
        status=form.get("MessageStatus") or form.get("SmsStatus"),
        error_code=form.get("ErrorCode"),
        delivery=delivery,
    )
    if not update.status:
        raise BadHook("the status callback names no status")
    return update


def _message_sid(sid: str) -> str:
    """Return the id of a message. Raises BadHook for anything else."""
    if not _MESSAGE_SID.fullmatch(sid):
        raise BadHook(f"{sid[:80]!r} is no id of a message: SM or MM and 32 hexadecimal digits")
    return sid


def _kind(form: TwilioForm) -> _Kind:
    hint = form.get("MessageType")
    if _payload(form):
        return "tap"
    if form.get("MediaUrl0"):
        return _kind_of_file(form, hint)
    if form.get("Latitude") and form.get("Longitude"):
        return "location"
    if hint in ("interactive", "button") or form.get("ListTitle") or form.get("ButtonText"):
        return "choice"
    if hint == "reaction":
        return "reaction"
    is_alone = form.get("NumMedia") in ("", "0")  # else its file did not come along: these are no words by themselves
    return "text" if hint in ("", "text") and is_alone else "other"


def _kind_of_file(form: TwilioForm, hint: str) -> _Kind:
    mime_type = form.get("MediaContentType0").partition(";")[0]
    if hint == "contacts" or mime_type in _CARDS:
        return "contact"
    if hint == "document" or mime_type.partition("/")[0] in ("application", "text"):
        return "document"
    if hint == "sticker" or (mime_type == "image/webp" and not form.get("Body")):
        return "sticker"
    return "file"


def _payload(form: TwilioForm) -> str:
    return form.get("ListId") or form.get("ButtonPayload")


def _label(form: TwilioForm) -> str:
    """Return what people see on the button or row that was chosen."""
    return form.get("ListTitle") or form.get("ButtonText") or form.get("Body")


def _media(form: TwilioForm, kind: _Kind) -> tuple[Media, ...]:
    """WhatsApp sends one file per message, by Twilio's URL. A document's name is in the body."""
    url, mime_type = form.get("MediaUrl0"), form.get("MediaContentType0") or "application/octet-stream"
    if not url or kind == "tap":
        return ()
    return (Media(url, mime_type, filename=form.get("Body") if kind in ("document", "contact") else ""),)


def _notes(form: TwilioForm, kind: _Kind) -> tuple[str, ...]:
    """What the message is besides words and files. Whatever has a note decides nothing."""
    if kind in ("tap", "reaction"):
        return ()
    found = _note(form, kind)
    around = (_forwarded(form), _advertisement(form)) if found or form.get("Body") or form.get("MediaUrl0") else ()
    return tuple(_line(note) for note in (found, *around) if note)


def _note(form: TwilioForm, kind: _Kind) -> str:
    """What the kind of the message says by itself."""
    if kind == "location":
        place = ", ".join(part for part in (form.get("Label"), form.get("Address")) if part)
        return f"location {form.get('Latitude')},{form.get('Longitude')}" + (f" ({place})" if place else "")
    if kind == "choice":
        # Nobody typed the title, and it is no proof of what it stood for.
        title = _label(form)
        return f"chose {title!r}" if title else ""
    if kind == "contact":
        return f"contact {form.get('Body')}"
    if kind == "other":
        hint = form.get("MessageType")
        return f"sent as {'a file' if hint in ('', 'text') else hint}" if form.get("Body") else ""
    return "sticker" if kind == "sticker" else ""


def _forwarded(form: TwilioForm) -> str:
    if _is_true(form.get("FrequentlyForwarded")):
        return "forwarded many times"
    return "forwarded" if _is_true(form.get("Forwarded")) else ""


def _is_true(word: str) -> bool:
    """However it is written: what was forwarded must not pass for somebody's own yes."""
    return word.casefold() not in ("", "false", "0")


def _advertisement(form: TwilioForm) -> str:
    words = ": ".join(part for part in (form.get("ReferralHeadline"), form.get("ReferralBody")) if part)
    url = form.get("ReferralSourceUrl")
    told = f"{words} ({url})" if words and url else words or url
    return f"came from an advertisement: {told}" if told else ""


def _line(text: str) -> str:
    return " ".join(text.split())
