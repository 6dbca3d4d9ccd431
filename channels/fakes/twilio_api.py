"""FakeTwilio: Messages, Contents, inbound files and the typing sign, with Twilio's rules about what may go together."""

from __future__ import annotations

import base64
import json
import re
import time
import urllib.error
import urllib.request
from dataclasses import replace
from typing import Any

from channels.fakes.base import ACCEPTED, Answer, Call, Ledger, json_answer
from channels.fakes.twilio_setup import TwilioSetup

_ADDRESS = re.compile(r"whatsapp:(\+\d{6,15}|[A-Z]{2}\.\w+)")

#: Seconds for which a web that is just being started again is asked for a file again, as Twilio does.
AWAY_SECONDS = 8.0


class RefusedError(Exception):
    """Raised when Twilio would answer 400 with this code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class FakeTwilio:
    """One account's side of the REST API. `url` is where its files' own network is; `redirect` sends elsewhere."""

    def __init__(self, ledger: Ledger, account_sid: str, auth_token: str, url: str) -> None:
        self._ledger, self._account_sid = ledger, account_sid
        self._messages = f"/2010-04-01/Accounts/{account_sid}/Messages/"
        self._url = url
        self.redirect = ""
        self._basic = "Basic " + base64.b64encode(f"{account_sid}:{auth_token}".encode()).decode()
        self._contents: dict[str, dict[str, Any]] = {}
        self.setup = TwilioSetup(account_sid)

    def sends(self, call: Call) -> bool:
        """Whether this call sends a message."""
        return call.route.endswith("/Messages.json")

    def answer(self, call: Call) -> Answer:
        """What the REST API would say."""
        if call.route.startswith("/cdn/"):
            return self._cdn(call)
        if call.headers.get("authorization") != self._basic:
            return _error(401, 20003, "Authenticate")
        try:
            if call.route == f"/2010-04-01/Accounts/{self._account_sid}/Messages.json":
                return self._message(call.form)
            if call.route == "/v1/Content":
                return self._create_content(json.loads(call.body))
        except RefusedError as exc:
            return _error(400, exc.code, str(exc))
        if call.route.startswith(self._messages):
            return self._media(call)
        if call.route == "/v2/Indicators/Typing.json":
            self._ledger.note("twilio", "typing", call.params)
            return json_answer(ACCEPTED, 201)
        return self.setup.answer(call) or _error(404, 20404, "The requested resource was not found")

    def failure(self, error: str) -> Answer:
        """A scripted error: an HTTP status or one of Twilio's codes."""
        if error == "429":
            return replace(_error(429, 20429, "Too Many Requests"), headers={"Retry-After": "7"})
        if len(error) == 3:
            return _error(int(error), 20500, "Internal Server Error")
        return _error(400, int(error), "The 'To' number whatsapp:+4915100000042 was refused")

    def host(self, data: bytes) -> str:
        """Keep a file that a person sent. Returns its MediaUrl."""
        digest = self._ledger.host(data)
        return f"https://api.twilio.com{self._messages}MM{digest[:32]}/Media/ME{digest[32:]}"

    def _media(self, call: Call) -> Answer:
        """Files are elsewhere: Twilio redirects."""
        self._ledger.note("twilio", "media", call.route)
        parts = re.fullmatch(r"MM(\w{32})/Media/ME(\w{32})", call.route.removeprefix(self._messages))
        if parts is None or "".join(parts.groups()) not in self._ledger.blobs:
            return _error(404, 20404, "The requested resource was not found")
        return Answer(302, b"", {"Location": self.redirect or f"{self._url}/cdn/{''.join(parts.groups())}"})

    def _cdn(self, call: Call) -> Answer:
        """A signed link and credentials exclude each other, as at S3."""
        self._ledger.note("twilio", "cdn", dict(call.headers))
        if "authorization" in call.headers:
            return Answer(400, b"<Error><Code>InvalidArgument</Code></Error>", {"Content-Type": "application/xml"})
        data = self._ledger.blobs.get(call.route.removeprefix("/cdn/"))
        return Answer(404, b"") if data is None else Answer(200, data, {"Content-Type": "application/octet-stream"})

    def _message(self, form: dict[str, list[str]]) -> Answer:
        fields = {name: values[0] for name, values in form.items()}
        _check(fields, form)
        text = fields.get("Body", "")
        buttons: list[dict[str, str]] = []
        if "ContentSid" in fields:
            text, buttons = self._filled(fields)
        number = self._ledger.record(
            "twilio",
            fields["To"],
            text=text,
            buttons=buttons,
            media=self._fetched(fields["MediaUrl"]) if "MediaUrl" in fields else None,
            raw=fields,
        )
        sid = f"{'MM' if 'MediaUrl' in fields else 'SM'}{number:032x}"
        return json_answer({"sid": sid, "status": "queued", "to": fields["To"], "error_code": None}, 201)

    def _filled(self, fields: dict[str, str]) -> tuple[str, list[dict[str, str]]]:
        """A Content with its variables put in."""
        content = self._contents.get(fields["ContentSid"])
        if content is None:
            raise RefusedError(21655, "The ContentSid is invalid")
        values = _variables(fields)
        quick_reply = content["types"]["twilio/quick-reply"]
        text = _fill(quick_reply["body"], values)
        if not text or len(text) > 1024:
            raise RefusedError(21617, "The content body must have 1 to 1024 characters")
        buttons = [{"label": action["title"], "data": _fill(action["id"], values)} for action in quick_reply["actions"]]
        return text, buttons

    def _fetched(self, url: str) -> dict[str, Any]:
        """Twilio fetches the file itself: the URL must work without credentials."""
        deadline = time.monotonic() + AWAY_SECONDS
        while True:
            try:
                with urllib.request.urlopen(url, timeout=5) as response:  # noqa: S310  # our own web's link
                    data, headers = response.read(), response.headers
                return self._ledger.keep(headers.get_filename() or "", headers.get_content_type(), data)
            except (OSError, ValueError) as exc:
                if not _is_away(exc) or time.monotonic() > deadline:
                    raise RefusedError(21620, "The media URL cannot be fetched") from exc
            time.sleep(0.1)

    def _create_content(self, content: dict[str, Any]) -> Answer:
        actions = content["types"]["twilio/quick-reply"]["actions"]
        if not 1 <= len(actions) <= 3 or any(not 1 <= len(action["title"]) <= 20 for action in actions):
            raise RefusedError(60200, "Invalid actions")
        sid = f"HX{len(self._contents) + 1:032x}"
        self._contents[sid] = content
        self._ledger.note("twilio", "content", content)
        return json_answer({"sid": sid, **content}, 201)


def _check(fields: dict[str, str], form: dict[str, list[str]]) -> None:
    _check_addresses(fields)
    if "ContentSid" in fields and ("Body" in fields or "MediaUrl" in fields):
        raise RefusedError(21654, "ContentSid goes without Body and MediaUrl")
    if "ContentVariables" in fields and "ContentSid" not in fields:
        raise RefusedError(21654, "ContentVariables need a ContentSid")
    if not any(fields.get(name) for name in ("Body", "MediaUrl", "ContentSid")):
        raise RefusedError(21619, "A text message body or media URL must be given")
    if len(fields.get("Body", "")) > 1600:
        raise RefusedError(21617, "The message body exceeds 1600 characters")
    if len(form.get("MediaUrl", ())) > 1:
        raise RefusedError(21623, "Only one MediaUrl is sent on WhatsApp")


def _check_addresses(fields: dict[str, str]) -> None:
    if not _ADDRESS.fullmatch(fields.get("To", "")):
        raise RefusedError(21211, "The 'To' number is not valid")
    if not fields.get("MessagingServiceSid") and not _ADDRESS.fullmatch(fields.get("From", "")):
        raise RefusedError(21212, "The 'From' number is not valid")


def _variables(fields: dict[str, str]) -> dict[str, str]:
    try:
        values = json.loads(fields.get("ContentVariables", "{}"))
    except ValueError as exc:
        raise RefusedError(21656, "The ContentVariables are not JSON") from exc
    if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
        raise RefusedError(21656, "The ContentVariables must be an object of strings")
    return values


def _fill(template: str, values: dict[str, str]) -> str:
    return re.sub(r"\{\{(\d+)\}\}", lambda match: values.get(match.group(1), ""), template)


def _error(status: int, code: int, message: str) -> Answer:
    more = f"https://www.twilio.com/docs/errors/{code}"
    return json_answer({"code": code, "message": message, "more_info": more, "status": status}, status)


def _is_away(exc: Exception) -> bool:
    """Whether nobody listened, or somebody was killed over the answer."""
    reason = exc.reason if isinstance(exc, urllib.error.URLError) else exc
    return isinstance(reason, ConnectionError)
