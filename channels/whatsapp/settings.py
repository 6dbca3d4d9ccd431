"""The settings of a WhatsApp channel.

The docstrings of the fields are printed in the reference of the YAML.
"""

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
    max_buttons: ClassVar[int] = 3

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
    """An approved template of Twilio's Content API with the text as {{1}}. It is sent to people who
    have been silent for 24 hours, to whom WhatsApp takes no other message. Example:
    `HX0123456789abcdef0123456789abcdef`.
    """
    confirm_template: Annotated[str | None, BeforeValidator(none_if_empty)] = None
    """An approved quick reply with the question as {{1}} and two buttons, with the ids {{2}}, which
    confirms, and {{3}}, which cancels. Example: `HX0123456789abcdef0123456789abcdef`.
    """

    @field_validator("from_")
    @classmethod
    def _is_sender(cls, sender: str | None) -> str | None:
        """Check that the sender is a number of WhatsApp."""
        if sender is not None and not re.fullmatch(r"whatsapp:\+?[0-9]+", sender):
            raise ValueError("is not a WhatsApp sender: write it as whatsapp:+14155238886")
        return sender

    @field_validator("messaging_service_sid", "template", "confirm_template")
    @classmethod
    def _is_sid(cls, sid: str | None, info: ValidationInfo) -> str | None:
        """Check an id of Twilio (a SID). It begins with two letters that name its kind."""
        prefix = "MG" if info.field_name == "messaging_service_sid" else "HX"
        if sid is not None and not re.fullmatch(rf"{prefix}[0-9a-fA-F]{{32}}", sid):
            raise ValueError(
                f"is not an id of this kind: "
                f"write {prefix} and the 32 digits that Twilio's Console shows"
            )
        return sid

    @model_validator(mode="after")
    def _has_sender(self) -> Self:
        """Check that there is a number, or a Messaging Service that chooses one."""
        if self.from_ is None and self.messaging_service_sid is None:
            raise ValueError("from is missing: give the sender as from, or a messaging_service_sid")
        return self

    def problem_with_id(self, given_id: str) -> str:
        """Return why no person of WhatsApp can have this id, "" if one can.

        The id is a phone number, or WhatsApp's id of a person who hides the number: a country,
        `ENT` for an id in several linked businesses, letters and digits. A number needs its +:
        without it the number would not match any more once its person hides it.
        """
        number = r"\+[0-9]{1,15}"
        user_id = r"[a-z]{2}\.(ent\.)?[a-z0-9]{1,128}"
        if re.fullmatch(rf"(?i)(whatsapp:)?({number}|{user_id})", given_id.strip()):
            return ""
        return (
            "is neither a phone number nor an id of WhatsApp: "
            "write it as +4915112345678 or DE.1A2B3C"
        )

    @property
    def account_id(self) -> str:
        """The account and its sender."""
        return f"{self.account_sid} {self.from_}"

    def user_ids(self, channel: str, user: str, identities: Identities) -> tuple[str, ...]:
        """Return all ids under which a person's turns may be stored.

        `user` is a phone number or another id of the person, with or without `whatsapp:` before it.
        Raises redis.RedisError.

        * The first id is the one that the turns are stored under, if the person is known.
        * A phone number names the person who last wrote from it, else the first one who did.
        * The phone numbers that the person had before are left out.
        * An id is left out if another person's turns are stored under it, who had it first.
        * Each id is named with and without `whatsapp:`.
        """
        bare = re.sub("^whatsapp:", "", user.strip(), flags=re.IGNORECASE)
        address = f"whatsapp:{bare}"
        # An identity has a key, under which the turns are stored, and all ids that the person had.
        # The key is searched for last: it may be a number that another person has now.
        identity = identities.find_by_id(channel, address)
        if identity is None:
            identity = identities.find_by_key(channel, address)
        if identity is None:
            spellings = (user, address, bare)
            return tuple(dict.fromkeys(each for each in spellings if each))

        ids = [identity.key]
        for each in current_ids(identity):
            other = identities.find_by_key(channel, each)
            if other is None or other.key == identity.key:
                ids.append(each)
        bare_ids = [each.removeprefix("whatsapp:") for each in ids]
        return tuple(dict.fromkeys([*ids, *bare_ids]))
