"""A fake of Twilio's REST API, as far as a bot on WhatsApp uses it.

* Messages: what the bot sends (`FakeTwilio`), and the list of what people sent (`TwilioMessages`).
* Contents: the shape of a message with buttons or a list, with variables such as {{1}}, which each
  message fills in. A template is a Content that Meta has approved; it may be sent at any time.
* Media: files that people sent.
* What an account has besides: its sender (a number on WhatsApp), its messaging service (which
  gathers senders) and its templates (`FakeTwilioSetup`).

Every resource has a sid, which is its id. Its first two letters name the kind, such as SM for a
message, and MM for one with media.

WhatsApp lets a bot send freely only within 24 hours after a person last wrote. Tests close this
window for an address. Limits of WhatsApp are numbers here, and not imported from the adapter: a
fake that reads the constants of the code under test would not notice a wrong one.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import threading
import time
import urllib.error
import urllib.request
from email.utils import formatdate
from typing import Any
from urllib.parse import urldefrag, urlencode, urlsplit

from sayso.channels.markdown.convert import utf16_len
from sayso.channels.whatsapp.incoming import whatsapp_hook
from sayso.infra.ids import random_id
from sayso.testing.platforms.server import (
    ACCEPTED,
    FakeResponse,
    RecordedRequest,
    RequestLog,
    json_response,
)

#: The sender and the messaging service of every fake account. At Twilio, an account that only uses
#: the Sandbox (a shared number for trying things out) has no sender.
SENDER = "whatsapp:+4930123456"
SENDER_SID = f"XE{1:032x}"
SERVICE_SID = f"MG{1:032x}"
#: The parameters of a messaging service, and the names of the same values in its answers.
_SERVICE_FIELDS = {
    "InboundRequestUrl": "inbound_request_url",
    "InboundMethod": "inbound_method",
    "FallbackUrl": "fallback_url",
    "FallbackMethod": "fallback_method",
    "StatusCallback": "status_callback",
    "UseInboundWebhookOnNumber": "use_inbound_webhook_on_number",
}
#: The keys of the webhook of a sender.
_WEBHOOK_FIELDS = frozenset(
    {
        "callback_url",
        "callback_method",
        "fallback_url",
        "fallback_method",
        "status_callback_url",
        "status_callback_method",
    }
)
#: The default number of messages in a page of the list, and the largest one.
PAGE_SIZE = 50
MAX_PAGE_SIZE = 1000
#: A day, or a time. Only the day of a time counts.
_DAY = re.compile(r"(\d{4}-\d{2}-\d{2})(T\d{2}:\d{2}:\d{2}Z)?")
#: A person or a sender: a phone number, or an id of a person without one.
_ADDRESS = re.compile(r"whatsapp:(\+\d{6,15}|[A-Z]{2}\.\w+)")
_MESSAGE_SID = re.compile(r"(SM|MM)[0-9a-fA-F]{32}")
#: A variable of a Content, such as {{1}}.
_VARIABLE = re.compile(r"\{\{(\d+)\}\}")

# Keys of `RequestLog.state`.

#: The messages that people sent.
_INBOUND = "twilio messages"
#: The addresses whose 24-hour window is closed.
_CLOSED = "twilio closed"
#: By address, the code with which messages fail after they were accepted.
_FAILING = "twilio failing"

#: An approved template with the text {{1}}.
TEMPLATE = f"HX{'a' * 32}"
#: An approved template that asks {{1}}, with buttons whose ids are {{2}} and {{3}}.
CONFIRM_TEMPLATE = f"HX{'b' * 32}"
#: The approved templates that can be sent, by their sid.
_TEMPLATES: dict[str, dict[str, Any]] = {
    TEMPLATE: {"types": {"twilio/text": {"body": "News for you: {{1}} Write to us to go on."}}},
    CONFIRM_TEMPLATE: {
        "types": {
            "twilio/quick-reply": {
                "body": "A question: {{1}} What do you say?",
                "actions": [{"title": "Yes", "id": "{{2}}"}, {"title": "No", "id": "{{3}}"}],
            }
        }
    },
}
_OFFICE = "application/vnd.openxmlformats-officedocument"
#: The media types that WhatsApp shows besides JPEG and PNG.
_OTHER_MEDIA_TYPES = frozenset(
    {
        "application/msword",
        "application/pdf",
        "application/vnd.ms-excel",
        "application/vnd.ms-powerpoint",
        "audio/3gpp",
        "audio/aac",
        "audio/amr",
        "audio/mpeg",
        "audio/ogg",
        "audio/opus",
        "text/vcard",
        "text/x-vcard",
        "video/mp4",
        f"{_OFFICE}.presentationml.presentation",
        f"{_OFFICE}.spreadsheetml.sheet",
        f"{_OFFICE}.wordprocessingml.document",
    }
)
#: How long a file is requested again while the web restarts, in seconds; Twilio retries too.
RESTART_SECONDS = 8.0


class TwilioRefusal(Exception):
    """Raised when Twilio would answer 400 with this error code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class FakeTwilio:
    """The REST API of one account. Its public methods are explained at the protocol `Fake`.

    `url` is where the fake is reached; a request for a file is redirected below it. Messages and
    files are in `log`, so its reset removes them. Contents and the setup live as long as this.
    """

    chat_fields = ("To",)

    def __init__(self, log: RequestLog, account_sid: str, auth_token: str, url: str) -> None:
        self._log = log
        self._account_sid = account_sid
        self._auth_token = auth_token
        self._messages_path = f"/2010-04-01/Accounts/{account_sid}/Messages"
        self._url = url
        #: Where requests for files are redirected to instead; "" for the fake itself.
        self.redirect = ""
        credentials = base64.b64encode(f"{account_sid}:{auth_token}".encode()).decode()
        self._authorization = f"Basic {credentials}"
        #: The Contents that the bot made, by sid.
        self._contents: dict[str, dict[str, Any]] = {}
        self.setup = FakeTwilioSetup(account_sid)
        self.inbound = TwilioMessages(log, account_sid)

    @property
    def closed(self) -> set[str]:
        """The addresses whose 24-hour window is closed. A reset of the log opens all."""
        addresses: set[str] = self._log.state.setdefault(_CLOSED, set())
        return addresses

    @property
    def failing(self) -> dict[str, str]:
        """By address, the code with which messages fail after they were accepted; "" for none.

        A reset of the log removes all.
        """
        codes: dict[str, str] = self._log.state.setdefault(_FAILING, {})
        return codes

    def sends(self, call: RecordedRequest) -> bool:
        """Return whether this call sends a message."""
        return call.method == "POST" and call.route.endswith("/Messages.json")

    def answer(self, call: RecordedRequest) -> FakeResponse:
        """Return the answer of the REST API."""
        # Before the credentials are checked, because the link to a file takes none.
        if call.route.startswith("/cdn/"):
            return self._download(call)
        if call.headers.get("authorization") != self._authorization:
            return _error(401, 20003, "Authenticate")
        try:
            if self.sends(call) and call.route == f"{self._messages_path}.json":
                return self._send(call.form)
            if call.method == "POST" and call.route == "/v1/Content":
                return self._create_content(json.loads(call.body))
            if call.route == "/v2/Indicators/Typing.json":
                return self._show_typing(call.params)
        except TwilioRefusal as exc:
            return _error(400, exc.code, str(exc))

        # The other parts return None for a call that is not about them. Media come after both kinds
        # of messages, because their paths begin with that of a message.
        response = self._sent_message(call) or self.inbound.answer(call)
        if response:
            return response
        if call.route.startswith(f"{self._messages_path}/"):
            return self._redirect_to_file(call)
        return self.setup.answer(call) or _not_found()

    def failure(self, error: str) -> FakeResponse:
        """Return a scripted error: an HTTP status such as "503", or one of Twilio's codes.

        Twilio's codes have five digits, an HTTP status has three.
        """
        if error == "429":
            return _too_many_requests()
        if len(error) == 3:
            return _error(int(error), 20500, "Internal Server Error")
        # The limits of a sender's speed and of an account's day are answered with 429 as well.
        if error in ("63018", "63038"):
            return _error(429, int(error), "The account exceeded the 50 daily messages limit")
        return _error(400, int(error), "The 'To' number whatsapp:+4915100000042 was refused")

    def host(self, data: bytes) -> str:
        """Store a file that a person sent. Return its MediaUrl."""
        digest = self._log.save_bytes(data)
        # The two ids together are the digest by which the log knows the file.
        return f"https://api.twilio.com{self._messages_path}/MM{digest[:32]}/Media/ME{digest[32:]}"

    def _sent_message(self, call: RecordedRequest) -> FakeResponse | None:
        """Return one message that this account sent, None for any other call.

        Its sid has its number in the log, see `_send`.
        """
        match = re.fullmatch(
            rf"{self._messages_path}/((?:SM|MM)([0-9a-f]{{32}}))\.json", call.route
        )
        if match is None or call.method != "GET":
            return None
        sid = match[1]
        number = int(match[2], 16)
        if not 0 < number <= len(self._log.sent):
            return None
        entry = self._log.sent[number - 1]
        if entry["platform"] != "twilio":
            return None
        sender = entry["raw"].get("From", "")
        return json_response(
            {"sid": sid, "body": entry["text"], "to": entry["chat"], "from": sender}
        )

    def _redirect_to_file(self, call: RecordedRequest) -> FakeResponse:
        """Redirect from the MediaUrl of a file to a signed link, as Twilio does."""
        self._log.append_call("twilio", "media", call.route)
        match = re.fullmatch(rf"{self._messages_path}/MM(\w{{32}})/Media/ME(\w{{32}})", call.route)
        digest = match[1] + match[2] if match else ""
        if digest not in self._log.blobs:
            return _not_found()
        return FakeResponse(302, b"", {"Location": self.redirect or f"{self._url}/cdn/{digest}"})

    def _download(self, call: RecordedRequest) -> FakeResponse:
        """Return a file. The link is signed, so a request with credentials is refused, as at S3."""
        self._log.append_call("twilio", "cdn", dict(call.headers))
        if "authorization" in call.headers:
            return FakeResponse(
                400,
                b"<Error><Code>InvalidArgument</Code></Error>",
                {"Content-Type": "application/xml"},
            )
        data = self._log.blobs.get(call.route.removeprefix("/cdn/"))
        if data is None:
            return FakeResponse(404, b"")
        return FakeResponse(200, data, {"Content-Type": "application/octet-stream"})

    def _send(self, form: dict[str, list[str]]) -> FakeResponse:
        """Check and log a message of the bot. Raises TwilioRefusal.

        Like Twilio, this accepts a message that cannot be delivered, and reports the failure later.
        """
        fields = {name: values[0] for name, values in form.items()}
        _check_message(fields, form)
        to = fields["To"]
        fail_code = self.failing.get(to, "")
        # In a closed window only a template is delivered.
        if to in self.closed and fields.get("ContentSid") not in _TEMPLATES:
            fail_code = "63016"
        if fail_code:
            return self._fail_later(fields, fail_code)

        text = fields.get("Body", "")
        buttons: list[dict[str, str]] = []
        if "ContentSid" in fields:
            text, buttons = self._fill_content(fields)
        media = None
        sid_prefix = "SM"
        if "MediaUrl" in fields:
            media = self._fetch(fields["MediaUrl"])
            _check_file(media, caption=text)
            sid_prefix = "MM"
        number = self._log.append_message(
            "twilio", to, text=text, buttons=buttons, media=media, raw=fields
        )
        # The sid has the number, by which `_sent_message` finds the message in the log.
        return _queued(f"{sid_prefix}{number:032x}", to)

    def _fail_later(self, fields: dict[str, str], code: str) -> FakeResponse:
        """Accept the message, and report it as failed a moment later.

        It is logged as a call whose method is the code.
        """
        sid = f"SM{random_id()}"
        self._log.append_call("twilio", code, fields)
        if "StatusCallback" in fields:
            form = {
                "MessageSid": sid,
                "MessageStatus": "failed",
                "ErrorCode": code,
                "To": fields["To"],
                "AccountSid": self._account_sid,
            }
            report = threading.Thread(
                target=self._report, args=(fields["StatusCallback"], form), daemon=True
            )
            report.start()
        return _queued(sid, fields["To"])

    def _report(self, callback: str, form: dict[str, str]) -> None:
        """Call the status callback once; Twilio does not promise more."""
        url = urldefrag(callback).url
        headers, body = whatsapp_hook(url, self._auth_token, form)
        request = urllib.request.Request(url, body, headers)  # noqa: S310  # our own web's address
        with contextlib.suppress(OSError):
            urllib.request.urlopen(request, timeout=5).close()  # noqa: S310  # as above

    def _show_typing(self, params: dict[str, Any]) -> FakeResponse:
        """Log that the bot shows that it types, below a person's message. Raises TwilioRefusal."""
        is_message = _MESSAGE_SID.fullmatch(str(params.get("messageId")))
        if params.get("channel") != "whatsapp" or not is_message:
            raise TwilioRefusal(20001, "The channel or the messageId is not valid")
        self._log.append_call("twilio", "typing", params)
        return json_response(ACCEPTED, 201)

    def _fill_content(self, fields: dict[str, str]) -> tuple[str, list[dict[str, str]]]:
        """Return the text and the buttons of a Content with its variables filled in.

        Raises TwilioRefusal.
        """
        sid = fields["ContentSid"]
        content = _TEMPLATES.get(sid) or self._contents.get(sid)
        if content is None:
            raise TwilioRefusal(21655, "The ContentSid is invalid")
        values = _checked_variables(fields, content, is_template=sid in _TEMPLATES)
        types = json.loads(_fill(json.dumps(content["types"]), values))
        # `_create_content` refuses a Content of several types.
        ((kind, shape),) = types.items()
        limit = 1600 if kind == "twilio/text" else 1024
        if not 1 <= utf16_len(shape["body"]) <= limit:
            raise TwilioRefusal(21617, f"The content body must have 1 to {limit} characters")
        return shape["body"], _checked_buttons(kind, shape)

    def _fetch(self, url: str) -> dict[str, Any]:
        """Fetch a file as Twilio does: the URL must work without credentials.

        Return its description. Raises TwilioRefusal if it cannot be fetched.
        """
        deadline = time.monotonic() + RESTART_SECONDS
        while True:
            try:
                with urllib.request.urlopen(url, timeout=5) as response:  # noqa: S310  # our own web
                    data = response.read()
                    headers = response.headers
                return self._log.save_file(
                    headers.get_filename() or "", headers.get_content_type(), data
                )
            except (OSError, ValueError) as exc:
                reason: object = exc
                if isinstance(exc, urllib.error.URLError):
                    reason = exc.reason
                # No web listened, or it was killed while it answered.
                is_restarting = isinstance(reason, ConnectionError)
                if not is_restarting or time.monotonic() > deadline:
                    raise TwilioRefusal(21620, "The media URL cannot be fetched") from exc
            time.sleep(0.1)

    def _create_content(self, content: dict[str, Any]) -> FakeResponse:
        """Store a Content, which can be sent at once. Raises TwilioRefusal."""
        is_named = content.get("friendly_name") and content.get("language")
        if not is_named or len(content["types"]) != 1:
            raise TwilioRefusal(60200, "Invalid parameter")
        ((kind, shape),) = content["types"].items()
        _check_shape(kind, shape)
        used_variables = set(_VARIABLE.findall(json.dumps(shape)))
        if not used_variables <= content.get("variables", {}).keys():
            raise TwilioRefusal(60200, "A variable has no sample")
        sid = f"HX{len(self._contents) + 1:032x}"
        self._contents[sid] = content
        self._log.append_call("twilio", "content", content)
        return json_response({"sid": sid, **content}, 201)


class FakeTwilioSetup:
    """What one account has besides its messages. Tests may change all of it.

    Lives as long as its `FakeTwilio`; a reset of the log changes nothing here.
    """

    def __init__(self, account_sid: str) -> None:
        self._account_sid = account_sid
        self.account = {
            "sid": account_sid,
            "friendly_name": "Acme",
            "status": "active",
            "type": "Full",
        }
        self.sender: dict[str, Any] = {
            "sid": SENDER_SID,
            "sender_id": SENDER,
            "status": "ONLINE",
            "webhook": {},
            "offline_reasons": None,
        }
        self.service: dict[str, Any] = {"sid": SERVICE_SID, "use_inbound_webhook_on_number": True}
        #: The templates that the setup methods know, by their sid: the name, and the status of
        #: Meta's approval ("" for a template that was never submitted). They cannot be sent: the
        #: templates for that are in _TEMPLATES.
        self.templates: dict[str, tuple[str, str]] = {}

    def answer(self, call: RecordedRequest) -> FakeResponse | None:
        """Return the answer to a call about these resources, None for any other call."""
        if call.route == f"/2010-04-01/Accounts/{self._account_sid}.json":
            return json_response(self.account)
        if call.route == "/v2/Channels/Senders":
            channel = call.form.get("Channel", [""])[0]
            senders = [self.sender] if channel == "whatsapp" else []
            return json_response({"senders": senders, "meta": {"key": "senders"}})
        if call.route == f"/v2/Channels/Senders/{SENDER_SID}":
            if call.method == "POST":
                return self._change_sender(call)
            return json_response(self.sender)
        if call.route == f"/v1/Services/{SERVICE_SID}":
            if call.method == "POST":
                return self._change_service(call)
            return json_response(self.service)
        return self._answer_about_template(call)

    def _change_sender(self, call: RecordedRequest) -> FakeResponse:
        """Change the webhook of the sender."""
        webhook = json.loads(call.body).get("webhook") or {}
        # An empty URL removes the webhook.
        values = [value for name, value in webhook.items() if name.endswith("_url")]
        urls = [urlsplit(str(value)) for value in values if value]
        are_addresses = all(url.scheme in ("http", "https") and url.hostname for url in urls)
        if set(webhook) - _WEBHOOK_FIELDS or not are_addresses:
            return _error(400, 63104, "Invalid webhook")
        self.sender["webhook"] = {**self.sender["webhook"], **webhook}
        return json_response(self.sender, 202)

    def _change_service(self, call: RecordedRequest) -> FakeResponse:
        """Change the messaging service."""
        fields = {name: values[0] for name, values in call.form.items()}
        if set(fields) - set(_SERVICE_FIELDS):
            return _error(400, 20001, "Unknown parameter")
        changed: dict[str, Any] = {
            _SERVICE_FIELDS[name]: value or None for name, value in fields.items()
        }
        if "UseInboundWebhookOnNumber" in fields:
            is_used = fields["UseInboundWebhookOnNumber"].lower() == "true"
            changed["use_inbound_webhook_on_number"] = is_used
        self.service |= changed
        return json_response(self.service)

    def _answer_about_template(self, call: RecordedRequest) -> FakeResponse | None:
        """Return a template or its approval, None for any other call."""
        match = re.fullmatch(r"/v1/Content/(HX\w+)(/ApprovalRequests)?", call.route)
        if match is None or match[1] not in self.templates:
            return None
        sid = match[1]
        name, status = self.templates[sid]
        is_about_approval = bool(match[2])
        if not is_about_approval:
            return json_response(
                {"sid": sid, "friendly_name": name, "language": "en", "variables": {}, "types": {}}
            )
        approval = None
        if status:
            approval = {
                "name": name,
                "status": status,
                "rejection_reason": "",
                "category": "UTILITY",
            }
        return json_response({"sid": sid, "account_sid": self._account_sid, "whatsapp": approval})


class TwilioMessages:
    """The list of the messages that people sent, which a bot reads after an outage.

    The list is in `log`, so its reset empties it.
    """

    def __init__(self, log: RequestLog, account_sid: str) -> None:
        self._log = log
        self._account_path = f"/2010-04-01/Accounts/{account_sid}"
        self._account_sid = account_sid
        #: How many of the next calls are answered with 429.
        self.busy_calls = 0

    @property
    def messages(self) -> list[dict[str, Any]]:
        """All messages, in the order in which they were added.

        Each has the fields of the API, its `files` (type by id), and `at` in Unix seconds.
        """
        messages: list[dict[str, Any]] = self._log.state.get(_INBOUND, [])
        return messages

    def arrive(
        self,
        address: str,
        body: str = "",
        *,
        ago: float = 0.0,
        sid: str = "",
        to: str = SENDER,
        service: str = "",
        files: tuple[tuple[str, str], ...] = (),
    ) -> str:
        """Add a message that was written `ago` seconds ago. Return its sid.

        `sid` is "" for a new one. `service` is the sid of the messaging service that received the
        message, "" for none. `files` are the id and the media type of each file.
        """
        prefix = "MM" if files else "SM"
        sid = sid or f"{prefix}{random_id()}"
        message = {
            "sid": sid,
            "from": address,
            "to": to,
            "body": body,
            "at": int(time.time() - ago),
            "direction": "inbound",
            "messaging_service_sid": service or None,
            "files": dict(files),
            "num_media": str(len(files)),
        }
        self._log.state.setdefault(_INBOUND, []).append(message)
        return sid

    def answer(self, call: RecordedRequest) -> FakeResponse | None:
        """Return the answer to a call about these resources, None for any other call."""
        media = re.fullmatch(
            rf"{self._account_path}/Messages/(\w+)/Media(?:/(\w+))?\.json", call.route
        )
        is_list = call.method == "GET" and call.route == f"{self._account_path}/Messages.json"
        if not media and not is_list:
            return None
        if self.busy_calls:
            self.busy_calls -= 1
            return _too_many_requests()
        if media:
            return self._answer_media(call, media[1], media[2])
        return self._list(call)

    def _list(self, call: RecordedRequest) -> FakeResponse:
        """Return a page of messages, newest first."""
        fields = {name: values[0] for name, values in call.form.items()}
        try:
            matching = self._matching(fields)
            size = min(int(fields.get("PageSize", PAGE_SIZE)), MAX_PAGE_SIZE)
            page = int(fields.get("Page", 0))
        except ValueError as exc:
            return _error(400, 20001, str(exc))
        self._log.append_call("twilio", "list", fields)

        end = (page + 1) * size
        next_uri = None
        if len(matching) > end:
            next_fields = {**fields, "Page": str(page + 1), "PageToken": f"PA{page + 1}"}
            next_uri = f"{self._account_path}/Messages.json?{urlencode(next_fields)}"
        resources = [self._resource(message) for message in matching[page * size : end]]
        return json_response({"messages": resources, "page": page, "next_page_uri": next_uri})

    def _matching(self, fields: dict[str, str]) -> list[dict[str, Any]]:
        """Return the messages that a query asks for, newest first.

        Of its two times only the day counts, as at Twilio, and both days are included. Raises
        ValueError for a date that is not valid.
        """
        since = _day(fields.get("DateSent>", ""))
        until = _day(fields.get("DateSent<", ""))
        matching = []
        for message in sorted(self.messages, key=lambda each: each["at"]):
            day = time.strftime("%Y-%m-%d", time.gmtime(message["at"]))
            is_in_time = (since or day) <= day <= (until or day)
            is_to_address = fields.get("To", message["to"]) == message["to"]
            if is_in_time and is_to_address:
                matching.append(message)
        return matching[::-1]

    def _resource(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return a message as the API lists it.

        Twilio's list has no taps, locations, names and business-scoped ids; webhooks do.
        """
        sent_at = formatdate(message["at"])
        fields = {name: value for name, value in message.items() if name not in ("at", "files")}
        return {
            **fields,
            "account_sid": self._account_sid,
            "status": "received",
            "num_segments": "1",
            "api_version": "2010-04-01",
            "date_sent": sent_at,
            "date_created": sent_at,
            "subresource_uris": {
                "media": f"{self._account_path}/Messages/{message['sid']}/Media.json"
            },
        }

    def _answer_media(self, call: RecordedRequest, sid: str, file_id: str | None) -> FakeResponse:
        """List the files of a message, or delete one; `file_id` is None for the list."""
        message = next((each for each in self.messages if each["sid"] == sid), None)
        if message is None or (file_id and file_id not in message["files"]):
            return _not_found()
        if file_id and call.method == "DELETE":
            # The message itself still says how many files it had.
            del message["files"][file_id]
            self._log.append_call("twilio", "delete", file_id)
            return FakeResponse(204, b"")
        if file_id or call.method != "GET":
            return _error(405, 20004, "Method not allowed")
        listed = [
            {"sid": name, "parent_sid": sid, "content_type": kind}
            for name, kind in message["files"].items()
        ]
        return json_response({"media_list": listed, "page": 0, "next_page_uri": None})


def _day(text: str) -> str:
    """Return the day of a date or time, such as 2026-11-29; "" for "".

    Raises ValueError for any other text.
    """
    match = _DAY.fullmatch(text)
    if text and not match:
        raise ValueError(f"the date {json.dumps(text)} is not valid")
    return match[1] if match else ""


def _check_shape(kind: str, shape: dict[str, Any]) -> None:
    """Raise TwilioRefusal for a Content that could not be sent without an approval of Meta.

    Without one, only a text with up to three buttons and a list of up to ten items can be sent.
    Texts that variables fill in are checked when the Content is sent (`_checked_buttons`).
    """
    actions = shape.get("actions", [])
    items = shape.get("items", [])
    is_valid = False
    if kind == "twilio/quick-reply":
        is_valid = set(shape) == {"body", "actions"} and 1 <= len(actions) <= 3
    elif kind == "twilio/list-picker":
        has_fields = set(shape) == {"body", "button", "items"}
        is_valid = has_fields and 1 <= len(items) <= 10 and 1 <= len(shape["button"]) <= 20

    are_actions = all(set(action) == {"title", "id"} for action in actions)
    are_items = all({"item", "id"} <= set(item) <= {"item", "id", "description"} for item in items)
    if not (is_valid and are_actions and are_items):
        raise TwilioRefusal(60200, "Invalid actions or items")
    if any(not 1 <= utf16_len(action["title"]) <= 20 for action in actions):
        raise TwilioRefusal(60200, "A title must have 1 to 20 characters")


def _checked_buttons(kind: str, shape: dict[str, Any]) -> list[dict[str, str]]:
    """Return the buttons or list items of a filled-in Content, as `label` and `data`.

    Raises TwilioRefusal for texts over the limits.
    """
    if kind == "twilio/text":
        return []
    if kind == "twilio/list-picker":
        entries = shape["items"]
        title_field = "item"
        max_lengths = {"item": 24, "id": 200, "description": 72}
    else:
        entries = shape["actions"]
        title_field = "title"
        max_lengths = {"title": 20, "id": 256}
    for entry in entries:
        if any(not 1 <= utf16_len(value) <= max_lengths[field] for field, value in entry.items()):
            raise TwilioRefusal(63013, "A title, an id or a description is empty or too long")
    if len({entry[title_field] for entry in entries}) < len(entries):
        raise TwilioRefusal(63013, "Two titles are the same")
    return [{"label": entry[title_field], "data": entry["id"]} for entry in entries]


def _check_file(file: dict[str, Any], caption: str) -> None:
    """Raise TwilioRefusal for a file that WhatsApp refuses, by its type, size or caption.

    `file` is a description by `RequestLog.save_file`. Only pictures have captions.
    """
    is_picture = file["mime"] in ("image/jpeg", "image/png")
    if not is_picture and file["mime"] not in _OTHER_MEDIA_TYPES:
        raise TwilioRefusal(63005, f"Files of type {file['mime']} are not accepted")
    max_megabytes = 5 if is_picture else 16
    if file["size"] > max_megabytes * 1024 * 1024:
        raise TwilioRefusal(63019, "The file is too large")
    if caption and not is_picture:
        raise TwilioRefusal(63030, "Only a picture has words beside it")


def _check_message(fields: dict[str, str], form: dict[str, list[str]]) -> None:
    """Raise TwilioRefusal for a message with fields that do not go together.

    `form` has all values of repeated fields, `fields` the first one of each.
    """
    if not _ADDRESS.fullmatch(fields.get("To", "")):
        raise TwilioRefusal(21211, "The 'To' number is not valid")
    if not fields.get("MessagingServiceSid") and not _ADDRESS.fullmatch(fields.get("From", "")):
        raise TwilioRefusal(21212, "The 'From' number is not valid")
    if "ContentSid" in fields and ("Body" in fields or "MediaUrl" in fields):
        raise TwilioRefusal(21654, "ContentSid goes without Body and MediaUrl")
    if "ContentVariables" in fields and "ContentSid" not in fields:
        raise TwilioRefusal(21654, "ContentVariables need a ContentSid")
    if not any(fields.get(name) for name in ("Body", "MediaUrl", "ContentSid")):
        raise TwilioRefusal(21619, "A text message body or media URL must be given")
    if utf16_len(fields.get("Body", "")) > 1600:
        raise TwilioRefusal(21617, "The message body exceeds 1600 characters")
    if len(form.get("MediaUrl", ())) > 1:
        raise TwilioRefusal(21623, "Only one MediaUrl is sent on WhatsApp")


def _checked_variables(
    fields: dict[str, str], content: dict[str, Any], *, is_template: bool
) -> dict[str, str]:
    """Return the values of the variables of a Content. Raises TwilioRefusal."""
    try:
        values = json.loads(fields.get("ContentVariables", "{}"))
    except ValueError as exc:
        raise TwilioRefusal(21656, "The ContentVariables are not JSON") from exc
    if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
        raise TwilioRefusal(21656, "The ContentVariables must be an object of strings")
    used_variables = set(_VARIABLE.findall(json.dumps(content["types"])))
    if not used_variables <= values.keys():
        raise TwilioRefusal(63028, "The number of parameters does not match")

    if is_template:
        for value in values.values():
            if not value or re.search(r"[\n\t]| {5}", value):
                raise TwilioRefusal(
                    21656, "A template's variable is empty, or has a line end, a tab or a wide gap"
                )
    return values


def _fill(template: str, values: dict[str, str]) -> str:
    """Return JSON with the values of variables filled into its strings."""

    def escaped_value(match: re.Match[str]) -> str:
        return json.dumps(values[match.group(1)])[1:-1]  # without the quotation marks

    return _VARIABLE.sub(escaped_value, template)


def _queued(sid: str, to: str) -> FakeResponse:
    """Return the answer to an accepted message."""
    return json_response({"sid": sid, "status": "queued", "to": to, "error_code": None}, 201)


def _not_found() -> FakeResponse:
    return _error(404, 20404, "The requested resource was not found")


def _too_many_requests() -> FakeResponse:
    return _error(429, 20429, "Too Many Requests", Retry_After="7")


def _error(status: int, code: int, message: str, **headers: str) -> FakeResponse:
    """Return an error as Twilio words it. `headers` are those of `json_response`."""
    more = f"https://www.twilio.com/docs/errors/{code}"
    return json_response(
        {"code": code, "message": message, "more_info": more, "status": status}, status, **headers
    )
