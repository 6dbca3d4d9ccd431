"""SelfService: what people tell the bot about themselves by commands: accounts and absences."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from sayso.pending.approvals.absences import Absence, RedisAbsences, TooManyAbsences
from sayso.pending.approvals.linking import AccountLinking
from sayso.pending.approvals.people import KnownPerson, PeopleDirectory

#: The longest absence, in seconds.
MAX_ABSENCE_SECONDS = 366 * 86_400

#: The result when a person announces an absence:
#:
#: * away: it is stored;
#: * bad_time: it would end in the past, or takes longer than MAX_ABSENCE_SECONDS;
#: * unknown_person: nobody has the name or id that was given for the colleague;
#: * yourself: the colleague is the person who is away;
#: * full: too many people are away.
AbsenceState = Literal["away", "bad_time", "unknown_person", "yourself", "full"]


@dataclass(frozen=True, slots=True)
class SelfService:
    """Carries out the commands of people about themselves. One per process.

    * `people`: says who a person is.
    * `absences`: where absences are stored.
    * `linking`: joins accounts; None where people may not join them.
    * `id_problem(channel, user_id)`: returns why no person of the channel can have the id, "" if
      one can.
    * `clock`: returns Unix seconds.

    Methods raise redis.RedisError and DirectoryUnavailable.
    """

    people: PeopleDirectory
    absences: RedisAbsences
    linking: AccountLinking | None
    id_problem: Callable[[str, str], str]
    clock: Callable[[], float] = time.time

    async def start_absence(
        self, person: KnownPerson, until: float, colleague: str, channel: str
    ) -> AbsenceState:
        """Store that a person is away, in place of an earlier absence.

        * `until`: the end, in Unix seconds.
        * `colleague`: the name of the person who decides meanwhile, or their id on `channel`; ""
          for nobody.
        * `channel`: the channel on which the person says this.
        """
        now = self.clock()
        if not now < until <= now + MAX_ABSENCE_SECONDS:
            return "bad_time"
        stand_in = ""
        if colleague:
            found = await self._colleague(colleague, channel)
            if found is None:
                return "unknown_person"
            if found.name == person.name:
                return "yourself"
            stand_in = found.name
        try:
            await self.absences.save(Absence(person.name, until, stand_in))
        except TooManyAbsences:
            return "full"
        # An earlier absence under another name of the person would end at another time.
        earlier_names = [name for name in person.all_names if name != person.name]
        if earlier_names:
            await self.absences.end(earlier_names)
        return "away"

    async def end_absence(self, person: KnownPerson) -> None:
        """End the absence of a person, if they are away."""
        await self.absences.end(person.all_names)

    async def _colleague(self, name: str, channel: str) -> KnownPerson | None:
        """Return the person with this name, or with this id on the channel; None for nobody."""
        if ":" not in name:
            for spelling in (name, name.lower()):
                found = await self.people.named(spelling)
                if found:
                    return found
        if self.id_problem(channel, name):
            return None
        return await self.people.named(f"{channel}:{name}")
