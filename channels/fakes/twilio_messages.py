"""TwilioMessages: the list of an account's messages and their files, as its REST API tells it, newest first."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from email.utils import formatdate
from typing import Any
from urllib.parse import urlencode
from uuid import uuid4

from sayso.channels.fakes.base import Answer, Call, Ledger, json_answer
from sayso.channels.fakes.twilio_setup import SENDER

_KEPT = "twilio messages"
#: Messages of a page that names no size, and the most of any.
PAGE, MOST = 50, 1000
_DAY = re.compile(r"(\d{4}-\d{2}-\d{2})(T\d{2}:\d{2}:\d{2}Z)?")


class TwilioMessages:
    """What people sent, whether a webhook told of it or not. `busy`: so many calls about it are too many at once."""

    def __init__(self, ledger: Ledger, account_sid: str) -> None:
        self._ledger = ledger
        self._account = f"/2010-04-01/Accounts/{account_sid}"
        self._account_sid = account_sid
        self.busy = 0

    @property
    def messages(self) -> list[dict[str, Any]]:
        """All of them, each with its `files`. A reset forgets them."""
        kept: list[dict[str, Any]] = self._ledger.kept.get(_KEPT, [])
        return kept

    def arrive(
        self, address: str, body: str = "", *, ago: float = 0.0, sid: str = "", to: str = SENDER, service: str = "",
        files: tuple[tuple[str, str], ...] = (),
    ) -> str:  # fmt: skip
        """Somebody wrote so many seconds ago. `files`: the id and the type of each. Returns the message's sid."""
        sid = sid or f"{'MM' if files else 'SM'}{uuid4().hex}"
        listed = {"sid": sid, "from": address, "to": to, "body": body, "at": int(time.time() - ago)}
        more = {"direction": "inbound", "messaging_service_sid": service or None, "files": dict(files)}
        self._ledger.kept.setdefault(_KEPT, []).append({**listed, **more, "num_media": str(len(files))})
        return sid

    def answer(self, call: Call) -> Answer | None:
        """The answer to a call about any of it, None to another one."""
        one = re.fullmatch(rf"{self._account}/Messages/(\w+)/Media(?:/(\w+))?\.json", call.route)
        if not one and (call.method, call.route) != ("GET", f"{self._account}/Messages.json"):
            return None
        if self.busy:
            self.busy -= 1
            words = {"code": 20429, "message": "Too Many Requests", "status": 429}
            return json_answer(words, 429, Retry_After="7")
        return self._files(call, one[1], one[2]) if one else self._list(call)

    def _list(self, call: Call) -> Answer:
        fields = {name: values[0] for name, values in call.form.items()}
        try:
            found = list(self._found(fields))
            size, page = min(int(fields.get("PageSize", PAGE)), MOST), int(fields.get("Page", 0))
        except ValueError as exc:
            return json_answer({"code": 20001, "message": str(exc), "status": 400}, 400)
        shown, more = found[page * size : (page + 1) * size], len(found) > (page + 1) * size
        onward = {**fields, "Page": str(page + 1), "PageToken": f"PA{page + 1}"}
        self._ledger.note("twilio", "list", fields)
        uri = f"{self._account}/Messages.json?{urlencode(onward)}"
        resources = [self._resource(each) for each in shown]
        return json_answer({"messages": resources, "page": page, "next_page_uri": uri if more else None})

    def _found(self, fields: dict[str, str]) -> Iterator[dict[str, Any]]:
        """Dates count as whole days: of a time only its day is looked at. Raises ValueError."""
        since, until = _day(fields.get("DateSent>", "")), _day(fields.get("DateSent<", ""))
        for each in sorted(self.messages, key=lambda each: each["at"])[::-1]:
            day = time.strftime("%Y-%m-%d", time.gmtime(each["at"]))
            if fields.get("To", each["to"]) == each["to"] and (since or day) <= day <= (until or day):
                yield each

    def _resource(self, message: dict[str, Any]) -> dict[str, Any]:
        """As the API shows it: nothing of taps, places, names or business-scoped ids."""
        sent, sid = formatdate(message["at"]), message["sid"]
        told = {name: value for name, value in message.items() if name not in ("at", "files")}
        fixed = {
            "account_sid": self._account_sid,
            "status": "received",
            "num_segments": "1",
            "api_version": "2010-04-01",
        }
        media = {"media": f"{self._account}/Messages/{sid}/Media.json"}
        return {**told, **fixed, "date_sent": sent, "date_created": sent, "subresource_uris": media}

    def _files(self, call: Call, sid: str, file: str | None) -> Answer:
        message = next((each for each in self.messages if each["sid"] == sid), None)
        if message is None or (file and file not in message["files"]):
            return json_answer({"code": 20404, "message": "The requested resource was not found", "status": 404}, 404)
        if file and call.method == "DELETE":
            del message["files"][file]  # what the message says of their number stays
            self._ledger.note("twilio", "delete", file)
            return Answer(204, b"")
        if file or call.method != "GET":
            return json_answer({"code": 20004, "message": "Method not allowed", "status": 405}, 405)
        listed = [{"sid": name, "parent_sid": sid, "content_type": kind} for name, kind in message["files"].items()]
        return json_answer({"media_list": listed, "page": 0, "next_page_uri": None})


def _day(given: str) -> str:
    found = _DAY.fullmatch(given)
    if given and not found:
        raise ValueError(f"the date {json.dumps(given)} is not valid")
    return found[1] if found else ""
