"""The settings of a WhatsApp channel."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    StringConstraints,
    ValidationInfo,
    field_validator,
    model_validator,
)

from sayso.channels.base import Identities, OptionalSecret, Secret, VendorSettings, none_if_empty
from sayso.channels.whatsapp.people import current_ids


class WhatsAppSettings(VendorSettings):
    """WhatsApp through Twilio: sent from one number, or by a Messaging Service."""

    user_id_prefix: ClassVar[str] = "whatsapp:"
    charges_per_message: ClassVar[bool] = True

    platform: Literal["whatsapp"]
    """WhatsApp through Twilio. Example: `whatsapp`."""
    account_sid: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
    """The id of the Twilio account. Example: `${TWILIO_ACCOUNT_SID}`."""
    auth_token: Secret
    """The account's auth token. Example: `${TWILIO_AUTH_TOKEN}`."""
    from_: Annotated[str | None, BeforeValidator(none_if_empty)] = Field(default=None, alias="from")
    """The sender.

    Either it or `messaging_service_sid` is needed. Example: `whatsapp:+14155238886`.
    """
    messaging_service_sid: Annotated[str | None, BeforeValidator(none_if_empty)] = None
    """The Messaging Service that chooses the sender.

    Example: `MG0123456789abcdef0123456789abcdef`.
    """
    shared_key: OptionalSecret = None
    """The key that signs webhooks in place of the auth token, once it is turned on at Twilio.
    Example: `${TWILIO_SHARED_KEY}`.
    """
    template: Annotated[str | None, BeforeValidator(none_if_empty)] = None
    """An approved Content with the text as {{1}}, for people who have been silent for 24 hours.
    Example: `HX0123456789abcdef0123456789abcdef`.
    """
    confirm_template: Annotated[str | None, BeforeValidator(none_if_empty)] = None
    """An approved quick reply with the question as {{1}} and two buttons, with the ids {{2}}, which
    confirms, and {{3}}, which cancels. Example: `HX0123456789abcdef0123456789abcdef`.
    """

    @field_validator("from_")
    @classmethod
    def _is_sender(cls, sender: str | None) -> str | None:
        if sender is not None and not re.fullmatch(r"whatsapp:\+?[0-9]+", sender):
            raise ValueError("is not a WhatsApp sender: write it as whatsapp:+14155238886")
        return sender

    @field_validator("messaging_service_sid", "template", "confirm_template")
    @classmethod
    def _is_sid(cls, sid: str | None, info: ValidationInfo) -> str | None:
        prefix = "MG" if info.field_name == "messaging_service_sid" else "HX"
        if sid is not None and not re.fullmatch(rf"{prefix}[0-9a-fA-F]{{32}}", sid):
            raise ValueError(
                f"is not an id of this kind: write {prefix} and the 32 digits that Twilio's Console shows"
            )
        return sid

    @model_validator(mode="after")
    def _has_sender(self) -> Self:
        if self.from_ is None and self.messaging_service_sid is None:
            raise ValueError("from is missing: give the sender as from, or a messaging_service_sid")
        return self

    def problem_with_id(self, name: str) -> str:
        """Return why an id never matches, "" for one that may.

        A number without + would not match once its person hides it.
        """
        if re.fullmatch(
            r"(?i)(whatsapp:)?(\+[0-9]{1,15}|[a-z]{2}\.(ent\.)?[a-z0-9]{1,128})", name.strip()
        ):
            return ""
        return "is neither a phone number nor an id of WhatsApp: write it as +4915112345678 or DE.1A2B3C"

    @property
    def account_id(self) -> str:
        """The account and its sender."""
        return f"{self.account_sid} {self.from_}"

    def user_ids(self, channel: str, user: str, identities: Identities) -> tuple[str, ...]:
        """Return the ids of a person. `user` is a phone number or another id of theirs.

        `whatsapp:` may stand before it.
        The first one is that under which the turns are stored, if it is known. A number names the
        person who last wrote from it. Numbers that are another person's are left out, as is one
        under which another person's turns are stored, who had it first.
        """
        bare = re.sub("^whatsapp:", "", user.strip(), flags=re.IGNORECASE)
        address = f"whatsapp:{bare}"
        identity = identities.find(channel, address) or identities.of_key(channel, address)
        if identity is None:
            return tuple(dict.fromkeys(each for each in (user, address, bare) if each))
        names = [identity.key]
        for name in current_ids(identity):
            other = identities.of_key(channel, name)
            if other is None or other.key == identity.key:
                names.append(name)
        return tuple(dict.fromkeys([*names, *(name.removeprefix("whatsapp:") for name in names)]))
