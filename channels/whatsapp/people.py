"""WhatsAppPeople: the id that everything of a person is stored under, and where messages go.

A person on WhatsApp has up to three ids: a phone number, which may pass to another person; an id in
one business, which Meta may give anew; and a parent id, in several linked businesses. A person may
hide the number, and may have written before Twilio sent ids. Everything of a person stays stored
under the id that came first, the key.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

from sayso.channels.base import Identities
from sayso.channels.types import Conversation, Identity, Sender, SenderIds, Turn

#: The prefix of WhatsApp addresses.
ADDRESS = "whatsapp:"
_NUMBER = re.compile(r"whatsapp:\+?[0-9]{1,15}")
#: A person's id in one business, and in several linked ones: a country, `ENT` for the second kind,
#: letters and digits.
_USER_ID = re.compile(r"whatsapp:[A-Z]{2}\.[A-Za-z0-9]{1,128}")
_PARENT_ID = re.compile(r"whatsapp:[A-Z]{2}\.ENT\.[A-Za-z0-9]{1,128}")


def is_user_id(address: str) -> bool:
    """Return whether an address is a person's id in one business.

    Only Meta gives such an id, to one person.
    """
    return _USER_ID.fullmatch(address) is not None


def is_parent_id(address: str) -> bool:
    """Return whether an address is a person's id in several linked businesses."""
    return _PARENT_ID.fullmatch(address) is not None


def is_number(address: str) -> bool:
    """Return whether an address is a phone number."""
    return _NUMBER.fullmatch(address) is not None


def sender_ids(turn: Turn) -> SenderIds:
    """Return the ids that a webhook names of its sender."""
    names = (turn.user_id, *turn.aliases)
    return SenderIds(
        user_id=next(filter(is_user_id, names), ""),
        number=next(filter(is_number, names), ""),
        parent=next(filter(is_parent_id, names), ""),
    )


class WhatsAppPeople:
    """The people of one channel. One per process, used from any thread.

    All methods except `sender` raise redis.RedisError. The questions of a person could not be
    stored under another id later: each is sealed for its person.
    """

    def __init__(self, channel: str, identities: Identities) -> None:
        self._channel = channel
        self._identities = identities

    def recognize(self, turn: Turn, *, store: bool, briefly: bool = False) -> Turn:
        """Return the turn under its sender's key.

        * `store`: whether the ids that the turn names are remembered.
        * `briefly`: whether they are remembered for an hour only.
        """
        sender = self.sender(turn)
        if sender is None:
            return turn
        identity = self._identities.recognize(
            self._channel, sender.ids, store=store, briefly=briefly
        )
        return sender.turn_of(identity)

    def sender(self, turn: Turn) -> Sender | None:
        """Return the ids that a turn names of its sender, None if it names none."""
        ids = sender_ids(turn)
        if not (ids.user_id or ids.number):
            return None
        return Sender(self._channel, ids, partial(_turn_of, turn, ids))

    def conversation_of(self, conversation: Conversation) -> Conversation:
        """Return the conversation of the person who has this address now.

        For an unknown address it is the same conversation.
        """
        identity = self._identities.find_by_id(self._channel, conversation.chat)
        if identity is None:
            return conversation
        return replace(conversation, chat=identity.key)

    def ids_of(self, user_id: str) -> tuple[str, ...]:
        """Return the ids that the person has now whose key is `user_id`; () for an unknown key."""
        identity = self._identities.find_by_key(self._channel, user_id)
        if identity is None:
            return ()
        ids = current_ids(identity)
        if identity.key not in ids:
            return ids
        return tuple(dict.fromkeys([identity.key, *ids]))

    def address(self, conversation: Conversation) -> str:
        """Return the address that messages to a conversation are sent to.

        It is the number from which the person last wrote. If another person has written from that
        number since, it is the id: the number would give the other person what is meant for the
        first.
        """
        identity = self._identities.find_by_key(self._channel, conversation.chat)
        if identity is None:
            return conversation.chat
        return identity.number or identity.user_id or identity.key


def _turn_of(turn: Turn, ids: SenderIds, identity: Identity) -> Turn:
    """Return the turn of a person under the person's key. `ids` are those that the turn names."""
    if identity.user_id and not ids.user_id:
        turn = _without_decision(turn)

    key = identity.key
    names = (turn.conversation.chat, turn.user_id, *turn.aliases, *current_ids(identity))
    aliases = tuple(name for name in dict.fromkeys(names) if name not in ("", key))
    # Most turns are stored as they came. A copy would cost each webhook time.
    if (turn.conversation.chat, turn.user_id, turn.aliases) == (key, key, aliases):
        return turn
    return replace(
        turn,
        conversation=replace(turn.conversation, chat=key),
        user_id=key,
        aliases=aliases,
    )


def _without_decision(turn: Turn) -> Turn:
    """Return a turn so that it decides nothing, because it names only the number of a person.

    The number may belong to another person by now, who must not learn of the open question either.
    A yes that does not count costs another tap; a yes of another person could not be undone.
    """
    note = "sent without the id of the person"
    turn = replace(turn, notes=(note, *turn.notes), maybe_other_person=True)
    if turn.tap is None:
        return turn
    text = turn.tap.label or turn.text
    return replace(turn, tap=None, text=text, kind="choice")


def current_ids(identity: Identity) -> tuple[str, ...]:
    """Return all ids of a person without the phone numbers that the person had before."""
    return tuple(name for name in identity.ids if name == identity.number or not is_number(name))
