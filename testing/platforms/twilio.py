"""A fake of Twilio's REST API: messages and their list, Contents, media, templates, senders,
messaging services.
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
from collections.abc import Iterator
from dataclasses import replace
from email.utils import formatdate
from typing import Any
from urllib.parse import urldefrag, urlencode, urlsplit

from sayso.channels.markdown import utf16_len
from sayso.channels.whatsapp.incoming import whatsapp_hook
from sayso.infra.ids import random_id
from sayso.testing.platforms.server import (
    ACCEPTED,
    FakeResponse,
    RecordedRequest,
    RequestLog,
    json_response,
)

#: A sender and a messaging service that every fake account has.
#: The number of the Sandbox is not a sender.
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
_WEBHOOK_FIELDS = frozenset(
    f"{kind}_{field}"
    for kind in ("callback", "fallback", "status_callback")
    for field in ("url", "method")
)
_MESSAGES = "twilio messages"
#: The default and the largest number of messages in a page.
PAGE = 50
MOST = 1000
_DAY = re.compile(r"(\d{4}-\d{2}-\d{2})(T\d{2}:\d{2}:\d{2}Z)?")
_ADDRESS = re.compile(r"whatsapp:(\+\d{6,15}|[A-Z]{2}\.\w+)")
_MESSAGE_SID = re.compile(r"(SM|MM)[0-9a-fA-F]{32}")
_VARIABLE = re.compile(r"\{\{(\d+)\}\}")
#: Approved templates: one with the text {{1}}, one that asks {{1}} with
#: buttons whose ids are {{2}} and {{3}}.
TEMPLATE = f"HX{'a' * 32}"
CONFIRM_TEMPLATE = f"HX{'b' * 32}"
_CLOSED = "twilio closed"
_FAILING = "twilio failing"
_ACTIONS = [{"title": "Yes", "id": "{{2}}"}, {"title": "No", "id": "{{3}}"}]
_TEMPLATES: dict[str, dict[str, Any]] = {
    TEMPLATE: {"types": {"twilio/text": {"body": "News for you: {{1}} Write to us to go on."}}},
    CONFIRM_TEMPLATE: {
        "types": {
            "twilio/quick-reply": {
                "body": "A question: {{1}} What do you say?",
                "actions": _ACTIONS,
            }
        }
    },
}
_OFFICE = "application/vnd.openxmlformats-officedocument"
#: Media types that WhatsApp shows besides JPEG and PNG.
_FILES = (
    *(
        "audio/ogg",
        "audio/opus",
        "audio/amr",
        "audio/3gpp",
        "audio/aac",
        "audio/mpeg",
        "video/mp4",
        "application/pdf",
    ),
    *(
        "application/msword",
        "application/vnd.ms-powerpoint",
        "application/vnd.ms-excel",
        "text/vcard",
        "text/x-vcard",
    ),
    *(f"{_OFFICE}.{kind}" for kind in ("wordprocessingml.document", "presentationml.presentation")),
    f"{_OFFICE}.spreadsheetml.sheet",
)
#: How long a file is requested again while the web restarts, in seconds; Twilio retries too.
RESTART_SECONDS = 8.0


class TwilioRefusal(Exception):
    """Raised when Twilio would answer 400 with this code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class FakeTwilio:
    """The REST API of one account.

    Media URLs begin with `url`; `redirect` makes them redirect elsewhere.
    """

    chat_fields = ("To",)

    def __init__(self, log: RequestLog, account_sid: str, auth_token: str, url: str) -> None:
        self._log = log
        self._account_sid = account_sid
        self._auth_token = auth_token
        self._messages = f"/2010-04-01/Accounts/{account_sid}/Messages/"
        self._url = url
        self.redirect = ""
        self._basic = "Basic " + base64.b64encode(f"{account_sid}:{auth_token}".encode()).decode()
        self._contents: dict[str, dict[str, Any]] = {}
        self.setup = FakeTwilioSetup(account_sid)
        self.inbound = TwilioMessages(log, account_sid)

    @property
    def closed(self) -> set[str]:
        """The addresses whose 24-hour window is closed. A reset opens all."""
        addresses: set[str] = self._log.state.setdefault(_CLOSED, set())
        return addresses

    @property
    def failing(self) -> dict[str, str]:
        """By address, the code with which messages fail after they were accepted.

        A reset removes all.
        """
        codes: dict[str, str] = self._log.state.setdefault(_FAILING, {})
        return codes

    def sends(self, call: RecordedRequest) -> bool:
        """Return whether this call sends a message."""
        return call.method == "POST" and call.route.endswith("/Messages.json")

    def answer(self, call: RecordedRequest) -> FakeResponse:
        """Return the answer of the REST API."""
        if call.route.startswith("/cdn/"):
            return self._cdn(call)
        if call.headers.get("authorization") != self._basic:
            return _error(401, 20003, "Authenticate")
        try:
            if self.sends(call) and call.route == f"{self._messages.rstrip('/')}.json":
                return self._message(call.form)
            if call.route == "/v1/Content":
                return self._create_content(json.loads(call.body))
            if call.route == "/v2/Indicators/Typing.json":
                return self._typing(call.params)
        except TwilioRefusal as exc:
            return _error(400, exc.code, str(exc))
        if call.method == "GET" and (response := self._sent_message(call)):
            return response
        if response := self.inbound.answer(call):
            return response
        if call.route.startswith(self._messages):
            return self._media(call)
        return self.setup.answer(call) or _error(404, 20404, "The requested resource was not found")

    def failure(self, error: str) -> FakeResponse:
        """Return a scripted error: an HTTP status or one of Twilio's codes."""
        if error == "429":
            return replace(_error(429, 20429, "Too Many Requests"), headers={"Retry-After": "7"})
        if len(error) == 3:
            return _error(int(error), 20500, "Internal Server Error")
        if error in ("63018", "63038"):
            return _error(429, int(error), "The account exceeded the 50 daily messages limit")
        return _error(400, int(error), "The 'To' number whatsapp:+4915100000042 was refused")

    def host(self, data: bytes) -> str:
        """Store a file that a person sent. Return its MediaUrl."""
        digest = self._log.save_bytes(data)
        return f"https://api.twilio.com{self._messages}MM{digest[:32]}/Media/ME{digest[32:]}"

    def _sent_message(self, call: RecordedRequest) -> FakeResponse | None:
        """Return one message that this account sent."""
        match = re.fullmatch(r"[SM]M([0-9a-f]{32})\.json", call.route.removeprefix(self._messages))
        number = int(match[1], 16) if match else 0
        if not 0 < number <= len(self._log.sent):
            return None
        entry = self._log.sent[number - 1]
        sent = {"sid": call.route[-39:-5], "body": entry["text"], "to": entry["chat"]}
        if entry["platform"] == "twilio":
            return json_response({**sent, "from": entry["raw"].get("From", "")})
        return None

    def _media(self, call: RecordedRequest) -> FakeResponse:
        """Redirect to the file, as Twilio does."""
        self._log.append_call("twilio", "media", call.route)
        parts = re.fullmatch(
            r"MM(\w{32})/Media/ME(\w{32})", call.route.removeprefix(self._messages)
        )
        if parts is None or "".join(parts.groups()) not in self._log.blobs:
            return _error(404, 20404, "The requested resource was not found")
        return FakeResponse(
            302, b"", {"Location": self.redirect or f"{self._url}/cdn/{''.join(parts.groups())}"}
        )

    def _cdn(self, call: RecordedRequest) -> FakeResponse:
        """Return the file. A signed link and credentials exclude each other, as at S3."""
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

    def _message(self, form: dict[str, list[str]]) -> FakeResponse:
        fields = {name: values[0] for name, values in form.items()}
        _check(fields, form)
        code = self.failing.get(fields["To"], "")
        if fields["To"] in self.closed and fields.get("ContentSid") not in _TEMPLATES:
            code = "63016"
        if code:
            return self._fail_later(fields, code)
        text = fields.get("Body", "")
        buttons: list[dict[str, str]] = []
        if "ContentSid" in fields:
            text, buttons = self._filled(fields)
        number = self._log.append_message(
            "twilio",
            fields["To"],
            text=text,
            buttons=buttons,
            media=_check_file(self._fetched(fields["MediaUrl"]), text)
            if "MediaUrl" in fields
            else None,
            raw=fields,
        )
        sid = f"{'MM' if 'MediaUrl' in fields else 'SM'}{number:032x}"
        return json_response(
            {"sid": sid, "status": "queued", "to": fields["To"], "error_code": None}, 201
        )

    def _fail_later(self, fields: dict[str, str], code: str) -> FakeResponse:
        """Accept the message, and report it as failed a moment later."""
        sid = f"SM{random_id()}"
        self._log.append_call("twilio", code, fields)
        if "StatusCallback" in fields:
            status = {
                "MessageSid": sid,
                "MessageStatus": "failed",
                "ErrorCode": code,
                "To": fields["To"],
            }
            form = {**status, "AccountSid": self._account_sid}
            threading.Thread(
                target=self._report, args=(fields["StatusCallback"], form), daemon=True
            ).start()
        return json_response(
            {"sid": sid, "status": "queued", "to": fields["To"], "error_code": None}, 201
        )

    def _report(self, callback: str, form: dict[str, str]) -> None:
        """Call the status callback once; Twilio does not promise more."""
        url = urldefrag(callback).url
        headers, body = whatsapp_hook(url, self._auth_token, form)
        request = urllib.request.Request(url, body, headers)  # noqa: S310  # our own web's address
        with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=5):  # noqa: S310  # as above
            pass

    def _typing(self, params: dict[str, Any]) -> FakeResponse:
        if params.get("channel") != "whatsapp" or not _MESSAGE_SID.fullmatch(
            str(params.get("messageId"))
        ):
            raise TwilioRefusal(20001, "The channel or the messageId is not valid")
        self._log.append_call("twilio", "typing", params)
        return json_response(ACCEPTED, 201)

    def _filled(self, fields: dict[str, str]) -> tuple[str, list[dict[str, str]]]:
        """Return a Content with its variables filled in."""
        sid = fields["ContentSid"]
        content = _TEMPLATES.get(sid) or self._contents.get(sid)
        if content is None:
            raise TwilioRefusal(21655, "The ContentSid is invalid")
        values = _variables(fields, content, approved=sid in _TEMPLATES)
        ((kind, shape),) = json.loads(_fill(json.dumps(content["types"]), values)).items()
        if not 1 <= utf16_len(shape["body"]) <= (1600 if kind == "twilio/text" else 1024):
            raise TwilioRefusal(21617, "The content body must have 1 to 1024 characters")
        return shape["body"], _buttons(kind, shape)

    def _fetched(self, url: str) -> dict[str, Any]:
        """Fetch the file as Twilio does: the URL must work without credentials."""
        deadline = time.monotonic() + RESTART_SECONDS
        while True:
            try:
                with urllib.request.urlopen(url, timeout=5) as response:  # noqa: S310  # our own web's link
                    data = response.read()
                    headers = response.headers
                return self._log.save_file(
                    headers.get_filename() or "", headers.get_content_type(), data
                )
            except (OSError, ValueError) as exc:
                if isinstance(exc, urllib.error.URLError):
                    reason = exc.reason
                else:
                    reason = exc
                # Nothing listened, or it was killed while answering.
                is_restarting = isinstance(reason, ConnectionError)
                if not is_restarting or time.monotonic() > deadline:
                    raise TwilioRefusal(21620, "The media URL cannot be fetched") from exc
            time.sleep(0.1)

    def _create_content(self, content: dict[str, Any]) -> FakeResponse:
        if (
            not content.get("friendly_name")
            or not content.get("language")
            or len(content["types"]) != 1
        ):
            raise TwilioRefusal(60200, "Invalid parameter")
        ((kind, shape),) = content["types"].items()
        _check_shape(kind, shape)
        if not set(_VARIABLE.findall(json.dumps(shape))) <= content.get("variables", {}).keys():
            raise TwilioRefusal(60200, "A variable has no sample")
        sid = f"HX{len(self._contents) + 1:032x}"
        self._contents[sid] = content
        self._log.append_call("twilio", "content", content)
        return json_response({"sid": sid, **content}, 201)


class FakeTwilioSetup:
    """What one account has besides its messages. Tests may change all of it."""

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
        #: Templates by their sid: a name, and what Meta said of it (""
        #: for one that was never submitted).
        self.templates: dict[str, tuple[str, str]] = {}

    def answer(self, call: RecordedRequest) -> FakeResponse | None:
        """Return the answer to a call about these resources, None for any other call."""
        if call.route == f"/2010-04-01/Accounts/{self._account_sid}.json":
            return json_response(self.account)
        if call.route == "/v2/Channels/Senders":
            wanted = call.form.get("Channel", [""])[0] == "whatsapp"
            return json_response(
                {"senders": [self.sender] if wanted else [], "meta": {"key": "senders"}}
            )
        if call.route == f"/v2/Channels/Senders/{SENDER_SID}":
            if call.method == "POST":
                return self._change_sender(call)
            return json_response(self.sender)
        if call.route == f"/v1/Services/{SERVICE_SID}":
            if call.method == "POST":
                return self._change_service(call)
            return json_response(self.service)
        return self._template(call)

    def _change_sender(self, call: RecordedRequest) -> FakeResponse:
        webhook = json.loads(call.body).get("webhook") or {}
        urls = [
            urlsplit(str(value))
            for name, value in webhook.items()
            if name.endswith("_url") and value
        ]
        are_addresses = all(url.scheme in ("http", "https") and url.hostname for url in urls)
        if set(webhook) - _WEBHOOK_FIELDS or not are_addresses:
            return json_response({"code": 63104, "message": "Invalid webhook", "status": 400}, 400)
        self.sender["webhook"] = {**self.sender["webhook"], **webhook}
        return json_response(self.sender, 202)

    def _change_service(self, call: RecordedRequest) -> FakeResponse:
        fields = {name: values[0] for name, values in call.form.items()}
        if set(fields) - set(_SERVICE_FIELDS):
            return json_response(
                {"code": 20001, "message": "Unknown parameter", "status": 400}, 400
            )
        changed: dict[str, Any] = {
            _SERVICE_FIELDS[name]: value or None for name, value in fields.items()
        }
        if "use_inbound_webhook_on_number" in changed:
            changed["use_inbound_webhook_on_number"] = (
                fields["UseInboundWebhookOnNumber"].lower() == "true"
            )
        self.service |= changed
        return json_response(self.service)

    def _template(self, call: RecordedRequest) -> FakeResponse | None:
        match = re.fullmatch(r"/v1/Content/(HX\w+)(/ApprovalRequests)?", call.route)
        if match is None or match[1] not in self.templates:
            return None
        name, status = self.templates[match[1]]
        if not match[2]:
            return json_response(
                {
                    "sid": match[1],
                    "friendly_name": name,
                    "language": "en",
                    "variables": {},
                    "types": {},
                }
            )
        if status:
            whatsapp = {
                "name": name,
                "status": status,
                "rejection_reason": "",
                "category": "UTILITY",
            }
        else:
            whatsapp = None
        return json_response(
            {"sid": match[1], "account_sid": self._account_sid, "whatsapp": whatsapp}
        )


class TwilioMessages:
    """The messages that people sent, with or without a webhook.

    The next `busy` calls are answered with 429.
    """

    def __init__(self, log: RequestLog, account_sid: str) -> None:
        self._log = log
        self._account = f"/2010-04-01/Accounts/{account_sid}"
        self._account_sid = account_sid
        self.busy = 0

    @property
    def messages(self) -> list[dict[str, Any]]:
        """All messages, each with its `files`. A reset removes them."""
        messages: list[dict[str, Any]] = self._log.state.get(_MESSAGES, [])
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
        """Add a message written this many seconds ago.

        `files` holds id and type of each. Return its sid.
        """
        sid = sid or f"{'MM' if files else 'SM'}{random_id()}"
        listed = {"sid": sid, "from": address, "to": to, "body": body, "at": int(time.time() - ago)}
        more = {
            "direction": "inbound",
            "messaging_service_sid": service or None,
            "files": dict(files),
        }
        self._log.state.setdefault(_MESSAGES, []).append(
            {**listed, **more, "num_media": str(len(files))}
        )
        return sid

    def answer(self, call: RecordedRequest) -> FakeResponse | None:
        """Return the answer to a call about these resources, None for any other call."""
        one = re.fullmatch(rf"{self._account}/Messages/(\w+)/Media(?:/(\w+))?\.json", call.route)
        if not one and (call.method, call.route) != ("GET", f"{self._account}/Messages.json"):
            return None
        if self.busy:
            self.busy -= 1
            error = {"code": 20429, "message": "Too Many Requests", "status": 429}
            return json_response(error, 429, Retry_After="7")
        if one:
            return self._files(call, one[1], one[2])
        return self._list(call)

    def _list(self, call: RecordedRequest) -> FakeResponse:
        fields = {name: values[0] for name, values in call.form.items()}
        try:
            matching = list(self._matching(fields))
            size = min(int(fields.get("PageSize", PAGE)), MOST)
            page = int(fields.get("Page", 0))
        except ValueError as exc:
            return json_response({"code": 20001, "message": str(exc), "status": 400}, 400)
        page_messages = matching[page * size : (page + 1) * size]
        more = len(matching) > (page + 1) * size
        onward = {**fields, "Page": str(page + 1), "PageToken": f"PA{page + 1}"}
        self._log.append_call("twilio", "list", fields)
        uri = f"{self._account}/Messages.json?{urlencode(onward)}"
        resources = [self._resource(each) for each in page_messages]
        return json_response(
            {"messages": resources, "page": page, "next_page_uri": uri if more else None}
        )

    def _matching(self, fields: dict[str, str]) -> Iterator[dict[str, Any]]:
        """Yield the messages that a query asks for, newest first.

        Only the day of a time counts, as at Twilio.

        Raises ValueError.
        """
        since = _day(fields.get("DateSent>", ""))
        until = _day(fields.get("DateSent<", ""))
        for each in sorted(self.messages, key=lambda each: each["at"])[::-1]:
            day = time.strftime("%Y-%m-%d", time.gmtime(each["at"]))
            if fields.get("To", each["to"]) == each["to"] and (since or day) <= day <= (
                until or day
            ):
                yield each

    def _resource(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return a message as the API shows it: without taps, locations,
        names and business-scoped ids.
        """
        sent = formatdate(message["at"])
        sid = message["sid"]
        fields = {name: value for name, value in message.items() if name not in ("at", "files")}
        fixed = {
            "account_sid": self._account_sid,
            "status": "received",
            "num_segments": "1",
            "api_version": "2010-04-01",
        }
        media = {"media": f"{self._account}/Messages/{sid}/Media.json"}
        return {
            **fields,
            **fixed,
            "date_sent": sent,
            "date_created": sent,
            "subresource_uris": media,
        }

    def _files(self, call: RecordedRequest, sid: str, file: str | None) -> FakeResponse:
        message = next((each for each in self.messages if each["sid"] == sid), None)
        if message is None or (file and file not in message["files"]):
            return json_response(
                {"code": 20404, "message": "The requested resource was not found", "status": 404},
                404,
            )
        if file and call.method == "DELETE":
            del message["files"][file]  # what the message says of their number stays
            self._log.append_call("twilio", "delete", file)
            return FakeResponse(204, b"")
        if file or call.method != "GET":
            return json_response(
                {"code": 20004, "message": "Method not allowed", "status": 405}, 405
            )
        listed = [
            {"sid": name, "parent_sid": sid, "content_type": kind}
            for name, kind in message["files"].items()
        ]
        return json_response({"media_list": listed, "page": 0, "next_page_uri": None})


def _day(text: str) -> str:
    match = _DAY.fullmatch(text)
    if text and not match:
        raise ValueError(f"the date {json.dumps(text)} is not valid")
    return match[1] if match else ""


def _check_shape(kind: str, shape: dict[str, Any]) -> None:
    """Raise TwilioRefusal for a Content that needs approval,
    or has buttons that WhatsApp does not show.
    """
    actions = shape.get("actions", [])
    items = shape.get("items", [])
    if kind == "twilio/quick-reply":
        good = set(shape) == {"body", "actions"} and 1 <= len(actions) <= 3
    elif kind == "twilio/list-picker":
        good = (
            set(shape) == {"body", "button", "items"}
            and 1 <= len(items) <= 10
            and 1 <= len(shape["button"]) <= 20
        )
    else:
        good = False
    if (
        not good
        or any({"title", "id"} != set(action) for action in actions)
        or not all(map(_is_item, items))
    ):
        raise TwilioRefusal(60200, "Invalid actions or items")
    if any(not 1 <= utf16_len(action["title"]) <= 20 for action in actions):
        raise TwilioRefusal(60200, "A title must have 1 to 20 characters")


def _is_item(item: dict[str, str]) -> bool:
    return {"item", "id"} <= set(item) <= {"item", "id", "description"}


def _buttons(kind: str, shape: dict[str, Any]) -> list[dict[str, str]]:
    """Return the buttons or list items, with variables filled in.

    Raises TwilioRefusal for texts over the limits.
    """
    if kind == "twilio/text":
        return []
    is_list = kind == "twilio/list-picker"
    entries, name = (shape["items"], "item") if is_list else (shape["actions"], "title")
    lengths = {name: 24 if is_list else 20, "id": 200 if is_list else 256, "description": 72}
    for entry in entries:
        if any(not 1 <= utf16_len(value) <= lengths[field] for field, value in entry.items()):
            raise TwilioRefusal(63013, "A title, an id or a description is empty or too long")
    if len({entry[name] for entry in entries}) < len(entries):
        raise TwilioRefusal(63013, "Two titles are the same")
    return [{"label": entry[name], "data": entry["id"]} for entry in entries]


def _check_file(file: dict[str, Any], caption: str) -> dict[str, Any]:
    """Return the file.

    Raises TwilioRefusal for a type or size that WhatsApp refuses, or a caption of no picture.
    """
    is_picture = file["mime"] in ("image/jpeg", "image/png")
    if not is_picture and file["mime"] not in _FILES:
        raise TwilioRefusal(63005, f"Files of type {file['mime']} are not accepted")
    if file["size"] > (5 if is_picture else 16) * 1024 * 1024:
        raise TwilioRefusal(63019, "The file is too large")
    if caption and not is_picture:
        raise TwilioRefusal(63030, "Only a picture has words beside it")
    return file


def _check(fields: dict[str, str], form: dict[str, list[str]]) -> None:
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


def _variables(
    fields: dict[str, str], content: dict[str, Any], *, approved: bool
) -> dict[str, str]:
    try:
        values = json.loads(fields.get("ContentVariables", "{}"))
    except ValueError as exc:
        raise TwilioRefusal(21656, "The ContentVariables are not JSON") from exc
    if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
        raise TwilioRefusal(21656, "The ContentVariables must be an object of strings")
    if not set(_VARIABLE.findall(json.dumps(content["types"]))) <= values.keys():
        raise TwilioRefusal(63028, "The number of parameters does not match")
    if approved and any(re.search(r"[\n\t]| {5}", value) or not value for value in values.values()):
        raise TwilioRefusal(
            21656, "A template's variable is empty, or has a line end, a tab or a wide gap"
        )
    return values


def _fill(template: str, values: dict[str, str]) -> str:
    """Return JSON with the values filled into its strings."""
    return _VARIABLE.sub(lambda match: json.dumps(values[match.group(1)])[1:-1], template)


def _error(status: int, code: int, message: str) -> FakeResponse:
    more = f"https://www.twilio.com/docs/errors/{code}"
    return json_response(
        {"code": code, "message": message, "more_info": more, "status": status}, status
    )
