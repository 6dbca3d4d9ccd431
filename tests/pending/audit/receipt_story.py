"""ReceiptStory: a bot whose decisions are collected into a ledger, from which receipts are made."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from redis import Redis

from sayso.pending.approvals.votes import Vote
from sayso.pending.audit.collector import AuditCollector
from sayso.pending.audit.ledger import FILE, AuditLedger
from sayso.pending.audit.receipt_check import check_receipt
from sayso.pending.audit.receipt_keys import PublicKey, ReceiptSigner
from sayso.pending.audit.receipts import DecisionReceipt, make_receipt
from tests.contracts.rigs import CHAT, Rig
from tests.pending.state_log import KEY, SIGNER
from tests.workers.fakes import Bot


def public_keys(*keys: str) -> dict[str, PublicKey]:
    """Return the public keys of a bot with these secret keys, by id."""
    return {key.id: key for key in ReceiptSigner(keys).public_keys}


def vote_of(action_id: str, mac: str, user: str, event: str, **fields: Any) -> Vote:
    """Return a vote of another person in words. It has no seal."""
    return Vote(
        action_id=action_id,
        record_mac=mac,
        answer="yes",
        form="words",
        channel="chat",
        user_id=user,
        conversation="chat:2",
        chat=user,
        thread="",
        event_id=event,
        at=2.5,
        **fields,
    )


class ReceiptStory:
    """A bot in the real Redis, and the ledger that its decisions are collected into."""

    def __init__(self, client: Redis, folder: Path, *names: str, **options: Any) -> None:
        self.client = client
        self.bot = Bot(Rig(client), *names, **options)
        self.ledger = AuditLedger(folder / FILE, SIGNER)

    def ask(self) -> str:
        """Let the bot ask, and return the id of the action."""
        self.bot.say("delete it")
        return self.bot.rig.repository.load_open(CHAT.id, self.bot.scope).action_id

    def collect(self) -> None:
        """Move everything into the ledger."""
        AuditCollector(self.client, self.ledger).collect()

    def receipt(self, action_id: str, *keys: str) -> DecisionReceipt:
        """Collect, make the receipt of an action, and return it as it is verified."""
        self.collect()
        made = make_receipt(self.ledger, action_id, keys or (KEY,), bot="shop", now=9.0)
        return check_receipt(made.to_json().encode(), public_keys(*(keys or (KEY,))))

    def vote(self, action_id: str, user: str = "bob", event: str = "v1", **fields: Any) -> Vote:
        """Return the sealed vote of another person about an action."""
        (stored,) = self.bot.rig.repository.load(CHAT.id, (action_id,))
        given = {"words": "fine with me", "person": user.title(), **fields}
        vote = vote_of(action_id, stored.mac, user, event, **given)
        return vote.sealed(self.bot.rig.store.signer)

    def store_votes(self, action_id: str, *votes: Vote | str) -> None:
        """Store votes with an action, as the scripts do."""
        lines = [vote if isinstance(vote, str) else vote.to_json() for vote in votes]
        key = f"{self.bot.rig.shard}:pending:{action_id}"
        self.client.hset(key, "votes", "\n".join(lines))


def forged(vote: Vote, **fields: Any) -> Vote:
    """Return a vote that was changed after it was sealed."""
    return replace(vote, **fields)
