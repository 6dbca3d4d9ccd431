"""The settings of a Telegram channel.

The docstrings of the fields are printed in the reference of the YAML.
"""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from sayso.channels.base import OptionalSecret, Secret, VendorSettings


class TelegramSettings(VendorSettings):
    """A Telegram bot."""

    can_drop_updates: ClassVar[bool] = True

    platform: Literal["telegram"]
    """A Telegram bot. Example: `telegram`."""
    token: Secret
    """The bot's token, from @BotFather. Example: `${TELEGRAM_TOKEN}`."""
    secret_token: OptionalSecret = None
    """The secret in the header of webhooks, which you choose: 1 to 256 letters, digits, `_` and
    `-`. Example: `${TELEGRAM_SECRET}`.
    """
    polling: bool = False
    """Whether the bot asks Telegram for messages instead of getting webhooks. It then needs no
    address and no `secret_token`. Example: `true`.
    """
    username: Annotated[str, Field(pattern=r"^(@?[A-Za-z0-9_]{4,32})?$")] = ""
    """The bot's @name. It tells the bot's own name from others in a group, so that `@my_fruit_bot
    yes` is a yes. Without it every name that ends in `bot` addresses the bot, and no yes beside
    such a name counts, since it may be for another bot. A bot that polls learns its name by itself.
    Example: `'@my_fruit_bot'`.
    """
    draft: Literal["native", "edit"] = "edit"
    """How an answer is shown in a private chat while it is written, with `streaming: true`. `edit`:
    a message that grows. `native`: Telegram's own draft, with a button to stop it; Telegram's apps
    for macOS and Android may show the draft next to the answer. A group always has a message that
    grows. Example: `native`.
    """
    rich_messages: bool = False
    """Whether answers with a table, and answers over 4,096 characters, are sent as rich messages:
    with a real table, and in one piece. Questions never are. Telegram's apps that do not know rich
    messages show nothing of them but a request to update. Example: `true`.
    """

    @field_validator("secret_token")
    @classmethod
    def _is_header_value(cls, secret: SecretStr | None) -> SecretStr | None:
        if secret and not re.fullmatch(r"[A-Za-z0-9_-]{1,256}", secret.get_secret_value()):
            raise ValueError("is malformed: Telegram takes 1 to 256 letters, digits, _ and -")
        return secret

    @model_validator(mode="after")
    def _gets_updates(self) -> Self:
        if not (self.polling or self.secret_token):
            raise ValueError(
                "secret_token is missing: give one for its webhooks, or write polling: true"
            )
        return self

    @property
    def webhook_secret(self) -> str | None:
        """The secret in the header of webhooks; None if the bot polls, so that it takes none."""
        if self.polling or not self.secret_token:
            return None
        return self.secret_token.get_secret_value()

    def problem_with_id(self, given_id: str) -> str:
        """Return why no person and no chat of Telegram can have this id, "" if one can.

        Telegram's ids are numbers. An @name is not an id, since it can be given to another person.
        """
        if re.fullmatch(r"-?[0-9]{1,20}", given_id):
            return ""
        return (
            "is not an id of Telegram: "
            "write the number that /whoami prints, or that of a group, with - before it"
        )

    def problem_with_group(self, given_id: str) -> str:
        """Return why no group of Telegram can have this id, "" if one can.

        The administrators of the group have the role.
        """
        if re.fullmatch(r"-[0-9]{1,20}", given_id):
            return ""
        return "is not the id of a group of Telegram: write its number, with - before it"

    @property
    def account_id(self) -> str:
        """The bot's id: the number that the token begins with."""
        return self.token.get_secret_value().strip().partition(":")[0]

    @property
    def polls(self) -> bool:
        """Whether the bot asks Telegram for messages, instead of getting webhooks."""
        return self.polling

    @property
    def update_source(self) -> str:
        """The bot at its server. Telegram gives each update to one poller of it.

        "" while the token is a placeholder, as in `sayso chat`.
        """
        if self.account_id.isdecimal():
            return f"{self.api_url or ''} {self.account_id}"
        return ""
