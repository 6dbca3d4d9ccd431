"""StandingYes: a yes of one person that also counts for later calls, within bounds.

A person gives it with a button of a question, where the rule of the tool offers one. It is stored
in the same step in which that yes claims its action: before the claim nothing is decided, and a
claim that is repeated after a crash stores it no second time. Its id is that of the action.

A later call that it covers is stored, claimed and run like any other action. Its claim books the
use: the script replaces the stored record by the one with that use, and only if nothing has changed
the record since it was read. So two calls cannot have the last use both, and a standing yes that
was revoked is used by no call.

The scope is one person in one conversation, as of each yes. Programs that run an agent without a
channel have no standing yeses.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

from sayso.channels.types import Scope
from sayso.infra.records import OtherVersion, check_version, versioned
from sayso.pending.action import ActionSigner, PendingAction, canonical_json
from sayso.pending.decision_record import DecisionRecord
from sayso.pending.standing_rule import StandingRule
from sayso.pending.stored_action import StoredAction

log = logging.getLogger(__name__)

#: The most characters of the preview that a standing yes keeps, for lists of them.
MAX_KEPT_PREVIEW_CHARS = 300


@dataclass(frozen=True, slots=True)
class StandingYes:
    """A standing yes, as it is stored. Immutable: each use makes another record.

    Times are in Unix seconds by the clock of the store.
    """

    #: The id of the action that the person confirmed with it.
    id: str
    #: The MAC of that action's record. It stands for the arguments and the preview.
    record_mac: str
    #: The tool.
    kind: str
    tool_digest: str
    version: str
    #: The rule that the question offered (`StandingRule.to_dict`).
    rule: Mapping[str, Any]
    #: The values that must be the same, by the names of the arguments.
    same: Mapping[str, Any]
    #: The beginning of what the person agreed to.
    preview: str
    channel: str
    #: The id of the conversation (`Conversation.id`).
    conversation: str
    user_id: str
    #: The event id of the tap.
    event_id: str
    granted_at: float
    expires_at: float
    #: The ids of the actions that have used it, in order.
    used: tuple[str, ...] = ()
    #: The seal over all other fields.
    seal: str = ""

    @classmethod
    def of(cls, stored: StoredAction, scope: Scope, event_id: str, now: float) -> StandingYes:
        """Return the standing yes that a person gives with the question of an action.

        It has no seal. `stored` is verified. Raises KeyError, TypeError or ValueError if the
        question offers none that can be read.
        """
        action = stored.action
        rule = StandingRule.from_dict(action.standing or {})
        return cls(
            id=stored.action_id,
            record_mac=stored.mac,
            kind=action.kind,
            tool_digest=action.tool_digest,
            version=action.version,
            rule=rule.to_dict(),
            same={name: action.args[name] for name in rule.same if name in action.args},
            preview=action.preview[:MAX_KEPT_PREVIEW_CHARS],
            channel=scope.conversation.channel,
            conversation=scope.conversation.id,
            user_id=scope.user_id,
            event_id=event_id,
            granted_at=round(now, 3),
            expires_at=round(now + rule.for_seconds, 3),
        )

    @property
    def times(self) -> int:
        """Return how many calls it covers in all."""
        return int(self.rule["times"])

    def covers(self, action: PendingAction, rule_now: Mapping[str, Any] | None, now: float) -> bool:
        """Return whether it covers a call that was just proposed, so that no question is needed.

        `rule_now` is what the tool and the policy say of this tool at present
        (`StandingRule.to_dict`), None if they allow no standing yes. The first row that fits counts:

        | the case                                                          | covered |
        |-------------------------------------------------------------------|---------|
        | the action has a code, a plan or an asking tool, or others decide | no      |
        | the time is over, or all uses are booked                          | no      |
        | another tool, definition or version                               | no      |
        | the rule differs from that of the question, or is gone            | no      |
        | an argument is outside of a bound, or not the same                | no      |
        | anything else                                                     | yes     |
        """
        is_plain_call = not (action.code or action.plan or action.asked_by or action.approval)
        if not is_plain_call:
            return False
        if now >= self.expires_at or len(self.used) >= self.times:
            return False
        shown = (self.kind, self.tool_digest, self.version)
        if not self.tool_digest or shown != (action.kind, action.tool_digest, action.version):
            return False
        if action.standing is None or rule_now is None:
            return False
        own_rule = canonical_json(dict(self.rule))
        for rule in (action.standing, rule_now):
            if canonical_json(dict(rule)) != own_rule:
                return False
        return StandingRule.from_dict(self.rule).covers(action.args, self.same)

    def used_by(self, action_id: str) -> StandingYes:
        """Return the standing yes with one more use. It has no seal."""
        return replace(self, used=(*self.used, action_id), seal="")

    def sealed(self, signer: ActionSigner) -> StandingYes:
        """Return the standing yes with its seal."""
        return replace(self, seal=signer.sign(self._sealed_text))

    def is_genuine(self, signer: ActionSigner, scope: Scope) -> bool:
        """Return whether nothing was changed since it was sealed, for this person here."""
        place = (self.user_id, self.channel, self.conversation)
        here = (scope.user_id, scope.conversation.channel, scope.conversation.id)
        return place == here and signer.verify(self._sealed_text, self.seal)

    @property
    def _sealed_text(self) -> str:
        """Return what the seal is over. It differs from the text of all other signed records."""
        data = self._to_dict()
        del data["seal"]
        return f"standing {json.dumps(data, sort_keys=True)}"

    def _to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"rule": dict(self.rule), "same": dict(self.same)}

    def to_json(self) -> str:
        """Return the standing yes as one line of JSON with a version. Equal ones give equal text."""
        return versioned(json.dumps(self._to_dict()))

    @classmethod
    def from_json(cls, text: str) -> StandingYes:
        """Read the result of `to_json`. Raises OtherVersion, ValueError, KeyError or TypeError."""
        data = json.loads(check_version(text))
        if not isinstance(data, dict):
            raise TypeError(f"a standing yes is an object, not {text!r}")
        del data["v"]
        yes = cls(**{**data, "used": tuple(data["used"])})
        yes._check()
        return yes

    def _check(self) -> None:
        """Raise KeyError, TypeError or ValueError for fields of another type."""
        StandingRule.from_dict(self.rule)
        times = (self.granted_at, self.expires_at)
        if not all(isinstance(each, int | float) for each in times):
            raise TypeError("a time of a standing yes is no number")
        texts = [self.id, self.kind, self.preview, self.seal, *self.used]
        if not all(isinstance(each, str) for each in texts):
            raise TypeError("a text of a standing yes is no text")


@dataclass(frozen=True, slots=True)
class StandingUse:
    """One use of a standing yes, which the claim of an action books."""

    #: As it was read.
    before: StandingYes
    #: With the use, sealed.
    after: StandingYes

    @classmethod
    def of(cls, yes: StandingYes, action_id: str, signer: ActionSigner) -> StandingUse:
        """Return the use of a standing yes by an action."""
        return cls(yes, yes.used_by(action_id).sealed(signer))

    def to_dict(self) -> dict[str, Any]:
        """Return the use as the scripts read it."""
        return {
            "id": self.before.id,
            "before": self.before.to_json(),
            "after": self.after.to_json(),
            "expires_at": round(self.before.expires_at * 1000),
        }


@dataclass(frozen=True, slots=True)
class StandingRevocation:
    """The end of standing yeses of one person in one conversation."""

    #: The id of the scope (`Scope.id`).
    user: str
    #: The ids of those that end; () for all.
    ids: tuple[str, ...] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        """Return the revocation as the scripts read it."""
        return {"user": self.user, "ids": self.ids}


class StandingRecords(Protocol):
    """Where standing yeses are stored: an ActionRepository."""

    async def load_standing(self, conversation: str, user: str) -> Sequence[str]:
        """Return the stored standing yeses of a scope, as `StandingYes.to_json` writes them."""


async def load_standing_yeses(
    records: StandingRecords, signer: ActionSigner, scope: Scope, now: float
) -> list[StandingYes]:
    """Return the standing yeses of a person here that have not ended, the oldest first.

    One that was changed in the store covers nothing: it is logged and left out. So is one that this
    process cannot read. `now` is in Unix seconds.
    """
    yeses = []
    for text in await records.load_standing(scope.conversation.id, scope.id):
        try:
            yes = StandingYes.from_json(text)
        except OtherVersion as exc:
            log.warning("standing.other_version", extra={"reason": str(exc)})
            continue
        except (ValueError, KeyError, TypeError, RecursionError):
            log.error("standing.tampered", extra={"reason": "unreadable"})
            continue
        if not yes.is_genuine(signer, scope):
            log.error("standing.tampered", extra={"action": yes.id})
        elif now < yes.expires_at and len(yes.used) < yes.times:
            yeses.append(yes)
    return sorted(yeses, key=lambda yes: (yes.granted_at, yes.id))


def standing_event_id(action_id: str) -> str:
    """Return the event id of the turn that runs a covered action. No action has two such turns."""
    return f"standing:{action_id}"


def standing_use_of(stored: StoredAction, signer: ActionSigner) -> DecisionRecord | None:
    """Return the decision of an action that ran under a standing yes, None for any other action.

    A decision that was changed in the store counts as none.
    """
    record = _decision_of(stored, signer)
    if record is None or record.form != "standing":
        return None
    return record


def granted_standing_yes(stored: StoredAction, signer: ActionSigner) -> DecisionRecord | None:
    """Return the yes to an action if it was a standing one, else None."""
    record = _decision_of(stored, signer)
    if record is None or record.form != "tap" or record.standing_yes != stored.action_id:
        return None
    return record


def _decision_of(stored: StoredAction, signer: ActionSigner) -> DecisionRecord | None:
    """Return the genuine decision of an action, None without one."""
    if not stored.decision:
        return None
    try:
        record = DecisionRecord.from_json(stored.decision)
    except (ValueError, TypeError):
        return None
    is_about_it = record.is_about(stored.action_id, stored.mac)
    return record if is_about_it and record.is_genuine(signer) else None
