"""Setup of FakeTwilio: its account, sender, messaging service and templates, as its REST API tells and changes them."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import urlsplit

from sayso.channels.fakes.base import Answer, Call, json_answer

#: A sender and a messaging service that every fake account has. The Sandbox's number is no sender.
SENDER, SENDER_SID = "whatsapp:+4930123456", f"XE{1:032x}"
SERVICE_SID = f"MG{1:032x}"
#: What a messaging service takes, as its API names it, and how it calls that itself.
_SERVICE_FIELDS = {
    "InboundRequestUrl": "inbound_request_url",
    "InboundMethod": "inbound_method",
    "FallbackUrl": "fallback_url",
    "FallbackMethod": "fallback_method",
    "StatusCallback": "status_callback",
    "UseInboundWebhookOnNumber": "use_inbound_webhook_on_number",
}
_WEBHOOK_FIELDS = frozenset(
    f"{kind}_{field}" for kind in ("callback", "fallback", "status_callback") for field in ("url", "method")
)


class TwilioSetup:
    """What one account has besides its messages. A test may change all of it."""

    def __init__(self, account_sid: str) -> None:
        self._account_sid = account_sid
        self.account = {"sid": account_sid, "friendly_name": "Acme", "status": "active", "type": "Full"}
        self.sender: dict[str, Any] = {
            "sid": SENDER_SID, "sender_id": SENDER, "status": "ONLINE", "webhook": {}, "offline_reasons": None
        }  # fmt: skip
        self.service: dict[str, Any] = {"sid": SERVICE_SID, "use_inbound_webhook_on_number": True}
        #: Templates by their sid: a name, and what Meta said of it ("" for one that was never submitted).
        self.templates: dict[str, tuple[str, str]] = {}

    def answer(self, call: Call) -> Answer | None:
        """The answer to a call about any of it, None to another one."""
        if call.route == f"/2010-04-01/Accounts/{self._account_sid}.json":
            return json_answer(self.account)
        if call.route == "/v2/Channels/Senders":
            wanted = call.form.get("Channel", [""])[0] == "whatsapp"
            return json_answer({"senders": [self.sender] if wanted else [], "meta": {"key": "senders"}})
        if call.route == f"/v2/Channels/Senders/{SENDER_SID}":
            return self._change_sender(call) if call.method == "POST" else json_answer(self.sender)
        if call.route == f"/v1/Services/{SERVICE_SID}":
            return self._change_service(call) if call.method == "POST" else json_answer(self.service)
        return self._template(call)

    def _change_sender(self, call: Call) -> Answer:
        webhook = json.loads(call.body).get("webhook") or {}
        if set(webhook) - _WEBHOOK_FIELDS or not all(map(_is_address, _urls(webhook))):
            return json_answer({"code": 63104, "message": "Invalid webhook", "status": 400}, 400)
        self.sender["webhook"] = {**self.sender["webhook"], **webhook}
        return json_answer(self.sender, 202)

    def _change_service(self, call: Call) -> Answer:
        fields = {name: values[0] for name, values in call.form.items()}
        if set(fields) - set(_SERVICE_FIELDS):
            return json_answer({"code": 20001, "message": "Unknown parameter", "status": 400}, 400)
        changed: dict[str, Any] = {_SERVICE_FIELDS[name]: value or None for name, value in fields.items()}
        if "use_inbound_webhook_on_number" in changed:
            changed["use_inbound_webhook_on_number"] = fields["UseInboundWebhookOnNumber"].lower() == "true"
        self.service |= changed
        return json_answer(self.service)

    def _template(self, call: Call) -> Answer | None:
        found = re.fullmatch(r"/v1/Content/(HX\w+)(/ApprovalRequests)?", call.route)
        if found is None or found[1] not in self.templates:
            return None
        name, status = self.templates[found[1]]
        if not found[2]:
            return json_answer({"sid": found[1], "friendly_name": name, "language": "en", "variables": {}, "types": {}})
        whatsapp = {"name": name, "status": status, "rejection_reason": "", "category": "UTILITY"} if status else None
        return json_answer({"sid": found[1], "account_sid": self._account_sid, "whatsapp": whatsapp})


def _urls(webhook: dict[str, Any]) -> list[str]:
    return [str(value) for name, value in webhook.items() if name.endswith("_url") and value]


def _is_address(url: str) -> bool:
    return urlsplit(url).scheme in ("http", "https") and bool(urlsplit(url).hostname)
