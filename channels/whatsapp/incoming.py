"""Twilio's signed webhooks: verified, and parsed into turns and delivery statuses.

A webhook is a form. Twilio has two kinds of them: a message or tap of a person, and the status of a
message that the bot sent, such as `delivered`.
"""

from __future__ import annotations

import base64
import contextlib
import hmac
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Literal
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

from sayso.channels.base import AddressClosed, BadHook, ChannelDown, OptedOut, TemplateRefused
from sayso.channels.inbound_limits import MAX_FORM_BYTES, MAX_FORM_FIELDS
from sayso.channels.types import (
    UNNAMED_ALBUM,
    AddressChange,
    Conversation,
    Media,
    Received,
    SignedWebhook,
    StatusUpdate,
    Tap,
    Turn,
    WebhookRequest,
    WebhookResponse,
)
from sayso.channels.whatsapp.client import reaction_to
from sayso.channels.whatsapp.people import ADDRESS, is_user_id

#: The header that Twilio adds for accounts with shared keys: `key=<id>,algorithm=<name>`.
TWILIO_SETTINGS = "x-twilio-webhooks-signature-settings"
#: The hash functions of the algorithms that Twilio names there.
_HASHES = {"HMAC_SHA1": "sha1", "HMAC_SHA256": "sha256"}
#: The SmsStatus of a person's message. Statuses of our messages have a MessageStatus too.
RECEIVED = "received"
#: The id of a message, with its exact length. A signature covers names and values without
#: separators, so a recorded form still verifies when a letter moves from one field to the next.
#: With an id of another length it would count as a new event.
MESSAGE_SID = re.compile(r"(SM|MM)[0-9a-fA-F]{32}")
#: The delivery that the URL of a status callback names, and its template, as the adapter writes
#: them: `<20 hex digits>.<number>`, and `.<template>`.
_DELIVERY = re.compile(r"([0-9a-f]{20})\.([1-9][0-9]{0,9})(?:\.(HX[0-9a-fA-F]{32}))?")
#: The answer to a webhook: nothing to do for Twilio.
_ANSWER = WebhookResponse(200, "<Response/>", "text/xml")
#: The MIME types of a contact.
_CARDS = ("text/vcard", "text/x-vcard")
#: What a message is:
#:
#: * `text`, and `file` with a caption: what a person wrote, or sent;
#: * `document`, `contact`, `sticker`: files that WhatsApp shows in their own way;
#: * `tap`: a button or a row of a list whose data names an action;
#: * `choice`: a button or a row without data, which decides nothing: only its title is known;
#: * `location`, `reaction`: neither text nor file; a location is described by a note;
#: * `other`: any other type, or a message whose file is missing.
_Kind = Literal[
    "text",
    "tap",
    "choice",
    "location",
    "contact",
    "sticker",
    "document",
    "file",
    "reaction",
    "other",
]


def twilio_signed(
    token: str,
    url: str,
    form: Mapping[str, Sequence[str]],
    signature: str,
    settings: str = "",
    *,
    hosts: Iterable[str] = (),
) -> bool:
    """Return whether Twilio signed this form for this URL.

    * `token`: the auth token of the account, or its shared key.
    * `url`: the URL that Twilio was given.
    * `form`: all values of each field, by its name.
    * `signature`: the value of the header X-Twilio-Signature.
    * `settings`: the value of the header TWILIO_SETTINGS, "" for none.
    * `hosts`: the hosts that the request names in its headers. Only those count that differ from
      the host of the URL in nothing but capitals: a person may have typed them so at Twilio.

    Twilio signs the URL with or without its port, and the host as it was typed into its console, so
    each spelling of the URL is accepted. Raises ValueError for a malformed URL.
    """
    algorithm = _HASHES.get(_algorithm_name(settings).upper())
    if algorithm is None:
        return False

    # Twilio signs the URL, and behind it the sorted names, each with its values: sorted, and without
    # repetitions.
    fields = ""
    for name in sorted(form):
        for value in sorted(set(form[name])):
            fields += name + value

    host = urlsplit(url).netloc.partition(":")[0]
    urls = [*_spellings(url)]
    for other in {each.partition(":")[0] for each in hosts}:
        if other != host and other.lower() == host.lower():
            urls += _spellings(url.replace(f"//{host}", f"//{other}", 1))

    signatures = (_signature(token, each + fields, algorithm) for each in urls)
    return any(hmac.compare_digest(each, signature.encode()) for each in signatures)


def _algorithm_name(settings: str) -> str:
    """Return the first algorithm in a header such as `key=1,algorithm=HMAC_SHA256`."""
    for part in settings.split(","):
        name, _, value = part.partition("=")
        if name.strip() == "algorithm" and value.strip():
            return value.strip()
    return "HMAC_SHA1"


def _signature(token: str, text: str, algorithm: str) -> bytes:
    return base64.b64encode(hmac.digest(token.encode(), text.encode(), algorithm))


@lru_cache(maxsize=64)
def _spellings(url: str) -> Iterable[str]:
    """Return the spellings of a URL: with and without its port, and with each spelling of its host.

    The host is spelled as given, in lower case, in punycode, and decoded from punycode.
    """
    parts = urlsplit(url)
    netloc = parts.netloc
    default_port = 443 if parts.scheme == "https" else 80
    port = parts.port or default_port
    if parts.port:
        netlocs = [netloc.split(":")[0], netloc]
    else:
        netlocs = [netloc, f"{netloc}:{default_port}"]
    # A login and an IPv6 address stay as they are.
    if "@" not in netloc and "[" not in netloc:
        for name in _hosts(parts.hostname or ""):
            netlocs += [name, f"{name}:{port}"]
    return tuple(parts._replace(netloc=each).geturl() for each in dict.fromkeys(netlocs))


def _hosts(host: str) -> list[str]:
    """Return the spellings of a host: as given, in punycode, and decoded from punycode.

    Punycode writes letters that are not ASCII as ASCII, such as "xn--bcher-kva" for "bücher".
    """
    names = [host]
    # UnicodeError: the host cannot be written in punycode, or is not in punycode.
    with contextlib.suppress(UnicodeError):
        names.append(host.encode("idna").decode())
    with contextlib.suppress(UnicodeError):
        names.append(host.encode("ascii").decode("idna"))
    return list(dict.fromkeys(name for name in names if name))


def whatsapp_hook(url: str, auth_token: str, form: Mapping[str, str]) -> SignedWebhook:
    """Return the headers and body of a webhook to `url`, signed as Twilio does.

    For tests, fakes and the probe of `sayso doctor`. `url` includes the query.
    """
    text = url + "".join(name + form[name] for name in sorted(form))
    headers = {
        "content-type": "application/x-www-form-urlencoded",
        "x-twilio-signature": _signature(auth_token, text, "sha1").decode(),
    }
    return headers, urlencode(form).encode()


class TwilioForm:
    """A decoded form. Lives as long as its request.

    It has repeated and empty fields too, since the signature covers them. Raises ValueError for a
    malformed form, and for one that is larger than Twilio's.
    """

    def __init__(self, body: bytes) -> None:
        if len(body) > MAX_FORM_BYTES:
            raise ValueError(
                f"the form has {len(body):,} bytes: Twilio's have at most {MAX_FORM_BYTES:,}"
            )
        text = body.decode()
        fields = parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FORM_FIELDS)
        #: All values of each field, by its name.
        self.values: dict[str, list[str]] = {}
        for name, value in fields:
            self.values.setdefault(name, []).append(value)

    def get(self, name: str) -> str:
        """Return the first value of a field, "" if it is missing."""
        return self.values.get(name, [""])[0]


def parse(
    form: TwilioForm, hook: WebhookRequest, *, channel: str, own_address: str | None
) -> Received:
    """Parse the verified form of a webhook: a message, a tap, or the status of a message.

    * `hook`: the request of the form.
    * `channel`: the channel's name in the YAML.
    * `own_address`: the number from which the channel sends, None for a Messaging Service.

    Raises BadHook.
    """
    # Status callbacks have a path of their own. A person's message may come there if an operator typed
    # the wrong URL at Twilio, and a status may come to the URL of messages.
    is_status = hook.path == "status" and form.get("SmsStatus") != RECEIVED
    if form.get("MessageStatus") or is_status:
        # The signature covers the query too, so this bot itself named the delivery to Twilio.
        query = parse_qs(urlsplit(hook.url).query)
        match = _DELIVERY.fullmatch(query.get("delivery", [""])[-1])
        if match is None:
            return _status(form, channel)
        delivery = f"{channel}:{match[1]}#{match[2]}"
        return _status(form, channel, delivery, match[3] or "")

    turn = turn_of(channel, form)
    if turn is None:
        return Received(ignored=f"message of type {form.get('MessageType')!r}", answer=_ANSWER)
    sender = form.get("From")
    # Not an SMS: there a sender can write any number into the field.
    if not sender.startswith(ADDRESS):
        return Received(ignored="not sent by WhatsApp", answer=_ANSWER)
    if sender in (own_address, form.get("To")):
        return Received(ignored="sent by this channel itself", answer=_ANSWER)
    return Received(turns=(turn,), answer=_ANSWER)


def _status(form: TwilioForm, channel: str, delivery: str = "", template: str = "") -> Received:
    """Return the status of a message, and what its error means for others.

    Some errors concern the address of the message, its template, or the whole channel. `delivery`
    and `template` are "" if the URL names none.
    """
    update = status_of(form, delivery, template)
    to = form.get("To")
    received = Received(statuses=(update,), answer=_ANSWER)
    if update.status not in ("failed", "undelivered"):
        return received
    meaning = reaction_to(update.error_code)
    if meaning is None:
        return received

    meaning = meaning.for_recipient(to)
    why = f"Twilio error {update.error_code}: {meaning.why}"
    if issubclass(meaning.kind, AddressClosed) and (to or delivery):
        change = AddressChange(
            Conversation(channel, to),
            why,
            late=True,
            delivery=delivery,
            opted_out=meaning.kind is OptedOut,
        )
        return replace(received, addresses=(change,))
    if meaning.kind is TemplateRefused and template:
        refusal = meaning.refusal_of(template, update.error_code)
        return replace(received, refused_templates=(refusal,))
    if meaning.kind is ChannelDown:
        return replace(received, alerts=(why,))
    return received


def turn_of(channel: str, form: TwilioForm) -> Turn | None:
    """Return the turn of a message, None for a message without content. Raises BadHook."""
    sid = _message_sid(form.get("MessageSid"))
    sender = form.get("From")
    if not sender:
        raise BadHook("the form has no From")

    kind = _kind(form)
    text = ""
    if kind in ("text", "file", "location", "other"):
        text = form.get("Body")
    payload = _payload(form)
    tap = None
    if payload:
        tap = Tap(payload, label=_label(form))

    # A message of WhatsApp has at most one file. Where it is a document or a contact, Twilio puts the
    # name of the file, or of the person, in place of the text.
    url = form.get("MediaUrl0")
    mime_type = form.get("MediaContentType0") or "application/octet-stream"
    filename = ""
    if kind in ("document", "contact"):
        filename = form.get("Body")
    media: tuple[Media, ...] = ()
    if url and kind != "tap":
        media = (Media(url, mime_type, filename),)

    # Only an id that Meta gives to one person takes the place of the number. Under any other,
    # several people could become one.
    user_id = form.get("ExternalUserId")
    if not is_user_id(user_id):
        user_id = sender
    names = (sender, form.get("WaId"), form.get("ParentExternalUserId"))
    turn = Turn(
        event_id=sid,
        conversation=Conversation(channel, user_id),
        user_id=user_id,
        user_name=form.get("ProfileName"),
        text=text,
        tap=tap,
        media=media,
        # WhatsApp gives an album no id: files that follow each other are taken as one.
        group=UNNAMED_ALBUM if _may_be_in_album(kind, mime_type) else "",
        notes=tuple(" ".join(note.split()) for note in _notes(form, kind)),
        message_id=sid,
        aliases=tuple(name for name in dict.fromkeys(names) if name not in ("", user_id)),
        replied_to=form.get("OriginalRepliedMessageSid"),
    )
    if turn.text or turn.tap or turn.media or turn.notes:
        return turn
    return None


def status_of(form: TwilioForm, delivery: str, template: str) -> StatusUpdate:
    """Return what Twilio reports about a message of the bot. Raises BadHook."""
    update = StatusUpdate(
        message_id=_message_sid(form.get("MessageSid") or form.get("SmsSid")),
        status=form.get("MessageStatus") or form.get("SmsStatus"),
        error_code=form.get("ErrorCode"),
        delivery=delivery,
        template=template,
    )
    if not update.status:
        raise BadHook("the status callback names no status")
    return update


def _message_sid(sid: str) -> str:
    """Return the id of a message. Raises BadHook for anything else."""
    if not MESSAGE_SID.fullmatch(sid):
        raise BadHook(
            f"{sid[:80]!r} is not the id of a message: SM or MM and 32 hexadecimal digits"
        )
    return sid


def _kind(form: TwilioForm) -> _Kind:
    """Return what a message is. Older forms have no MessageType, so other fields decide first."""
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
    # The text of an incomplete message belongs to a file that was not sent along.
    is_complete = form.get("NumMedia") in ("", "0")
    if hint in ("", "text") and is_complete:
        return "text"
    return "other"


def _kind_of_file(form: TwilioForm, hint: str) -> _Kind:
    """Return what a message with a file is. `hint` is its MessageType, "" for none."""
    mime_type = form.get("MediaContentType0").partition(";")[0]
    if hint == "contacts" or mime_type in _CARDS:
        return "contact"
    if hint == "document" or mime_type.partition("/")[0] in ("application", "text"):
        return "document"
    if hint == "sticker" or (mime_type == "image/webp" and not form.get("Body")):
        return "sticker"
    return "file"


def _may_be_in_album(kind: _Kind, mime_type: str) -> bool:
    """Return whether a file may be one of several that a person sent at once.

    WhatsApp sends each of them as a message. Voice notes, stickers and contacts are sent one by
    one, so their turns never wait for further files.
    """
    if kind == "document":
        return True
    return kind == "file" and mime_type.partition("/")[0] in ("image", "video")


def _payload(form: TwilioForm) -> str:
    """Return the data of a tapped button or of a chosen row of a list, "" if there is none.

    A list, which a button opens, takes the place of the buttons where there are too many.
    """
    return form.get("ListId") or form.get("ButtonPayload")


def _label(form: TwilioForm) -> str:
    """Return the label of the button or row that was chosen."""
    return form.get("ListTitle") or form.get("ButtonText") or form.get("Body")


def _notes(form: TwilioForm, kind: _Kind) -> Iterator[str]:
    """Yield descriptions of content that is neither text nor a file, and of its origin.

    A message with notes cannot confirm.
    """
    # A tap says everything by its data. A reaction without a note is no turn.
    if kind in ("tap", "reaction"):
        return
    note = _note(form, kind)
    if note:
        yield note
    elif not (form.get("Body") or form.get("MediaUrl0")):
        # There is no content whose origin could be described.
        return

    if _is_true(form.get("FrequentlyForwarded")):
        yield "forwarded many times"
    elif _is_true(form.get("Forwarded")):
        yield "forwarded"

    advertisement = _advertisement(form)
    if advertisement:
        yield f"came from an advertisement: {advertisement}"


def _advertisement(form: TwilioForm) -> str:
    """Return the text and the address of the advertisement that led here, "" for none."""
    parts = (form.get("ReferralHeadline"), form.get("ReferralBody"))
    text = ": ".join(part for part in parts if part)
    url = form.get("ReferralSourceUrl")
    if text and url:
        return f"{text} ({url})"
    return text or url


def _note(form: TwilioForm, kind: _Kind) -> str:
    """Return the description of content that is neither text nor a file, "" for no such content."""
    match kind:
        case "location":
            location = f"location {form.get('Latitude')},{form.get('Longitude')}"
            parts = (form.get("Label"), form.get("Address"))
            place = ", ".join(part for part in parts if part)
            return f"{location} ({place})" if place else location
        case "choice":
            # A note, since the person did not type the title and it does not say what it stood for.
            title = _label(form)
            return f"chose {title!r}" if title else ""
        case "contact":
            return f"contact {form.get('Body')}"
        case "sticker":
            return "sticker"
        case "other" if form.get("Body"):
            hint = form.get("MessageType")
            if hint in ("", "text"):
                hint = "a file"
            return f"sent as {hint}"
    return ""


def _is_true(word: str) -> bool:
    """Return whether a field of a form is set: Twilio writes "true" or "1", or leaves it out."""
    return word.casefold() not in ("", "false", "0")
