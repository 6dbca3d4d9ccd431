"""The commands with which people change their entry: /link, /unlink, /away and /back.

They exist where a bot knows people: see `Settings.knows_people`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from datetime import datetime

from sayso.agent.channel.absence_words import AbsenceWords, read_absence
from sayso.agent.channel.context import TurnContext, paragraphs
from sayso.channels.i18n.texts import Texts, users_zone
from sayso.channels.types import Turn
from sayso.infra.letter_codes import looks_like_a_code
from sayso.pending.approvals.linking import AccountLinking, LinkResult, account_names
from sayso.pending.approvals.links import CODE_SECONDS, LinkSide
from sayso.pending.approvals.people import DirectoryUnavailable, KnownPerson
from sayso.pending.approvals.self_service import SelfService

log = logging.getLogger(__name__)

#: The commands about accounts, which exist where people may join them.
_LINK_COMMANDS = ("link", "unlink")
#: The commands about absences.
_ABSENCE_COMMANDS = ("away", "back")


class PeopleCommands:
    """The commands of one channel about people. Lives as long as its agent."""

    def __init__(self, service: SelfService) -> None:
        self._service = service

    @property
    def names(self) -> tuple[str, ...]:
        """Return the commands, in the order of /help."""
        if self._service.linking is None:
            return _ABSENCE_COMMANDS
        return (*_LINK_COMMANDS, *_ABSENCE_COMMANDS)

    def knows(self, name: str, words: Sequence[str]) -> bool:
        """Return whether a message is one of the commands.

        `words` are those after the command. Other messages may begin with the same word.
        """
        if name not in self.names:
            return False
        match name:
            case "link":
                return not words or (len(words) == 1 and looks_like_a_code(words[0]))
            case "unlink" | "back":
                return not words
        return True

    async def answer(self, name: str, context: TurnContext) -> str:
        """Return the answer to a command. Raises redis.RedisError."""
        _, _, words = context.turn.text.strip().partition(" ")
        try:
            match name:
                case "away" if words.strip():
                    return await self._start_absence(context, words)
                case "away":
                    person = await self._person_of(context.turn)
                    lines = list(absence_lines(context.texts, person))
                    return "\n".join(lines) or paragraphs(
                        [context.texts.not_away(), context.texts.away_how()]
                    )
                case "back":
                    return await self._end_absence(context)
            if self._service.linking is None:
                raise ValueError(f"{name!r} is no command here")
            return await self._answer_about_links(name, context, self._service.linking, words)
        except DirectoryUnavailable as exc:
            log.warning("people.unavailable", extra={"reason": str(exc)})
            return context.texts.broken()

    async def _answer_about_links(
        self, name: str, context: TurnContext, linking: AccountLinking, words: str
    ) -> str:
        """Return the answer to /link and /unlink."""
        texts = context.texts
        turn = context.turn
        # Others could use a code that they read in a group.
        if turn.in_group:
            return texts.link_direct()
        side = LinkSide(
            turn.conversation.channel,
            turn.user_id,
            turn.conversation,
            turn.user_name,
            texts.language,
        )
        if name == "unlink":
            is_separated = await linking.unlink(side.account)
            if is_separated:
                return texts.unlinked()
            return texts.not_linked()
        if not words.strip():
            code = await linking.begin(side)
            if not code:
                return texts.link_too_many()
            return texts.link_code(code, CODE_SECONDS)
        result = await linking.finish(side, words.strip(), turn.event_id)
        return _link_text(texts, result)

    async def _start_absence(self, context: TurnContext, words: str) -> str:
        """Store what a person says of their absence, and return the answer."""
        texts = context.texts
        now = datetime.fromtimestamp(self._service.clock(), users_zone())
        read = read_absence(words, now, texts.weekdays)
        match read:
            case None:
                return texts.away_how()
            case "off":
                return await self._end_absence(context)
            case AbsenceWords(until, colleague):
                channel = context.turn.conversation.channel
                person = await self._person_of(context.turn)
                state = await self._service.start_absence(
                    person, until.timestamp(), colleague, channel
                )

        match state:
            case "away":
                return "\n".join(absence_lines(texts, await self._person_of(context.turn)))
            case "bad_time":
                return texts.away_bad_time()
            case "unknown_person":
                return texts.away_unknown_person(colleague)
            case "yourself":
                return texts.away_yourself()
        return texts.broken()

    async def _end_absence(self, context: TurnContext) -> str:
        """End the absence of a person, and return the answer."""
        person = await self._person_of(context.turn)
        await self._service.end_absence(person)
        if person.away_until:
            return context.texts.back()
        return context.texts.not_away()

    async def _person_of(self, turn: Turn) -> KnownPerson:
        return await self._service.people.person_of(
            turn.conversation.channel, (turn.user_id, *turn.aliases)
        )


def absence_lines(texts: Texts, person: KnownPerson) -> Iterator[str]:
    """Yield until when a person is away, and who decides meanwhile. Nothing if they are not away."""
    if person.away_until:
        yield texts.away_until(person.away_until)
        if person.stand_in:
            yield texts.away_stand_in(person.stand_in)


def _link_text(texts: Texts, result: LinkResult) -> str:
    """Return what a person reads who has typed a code."""
    match result.state:
        case "linked":
            return texts.link_done(account_names(result.accounts))
        case "waits":
            return texts.link_waits()
        case "unknown_code":
            return texts.link_unknown_code(CODE_SECONDS)
        case "too_many_tries":
            return texts.link_too_many()
        case "same_channel":
            return texts.link_same_channel()
        case "same_person":
            return texts.link_same_person()
        case "two_people":
            return texts.link_two_people(*result.names)
        case "too_many_accounts":
            return texts.link_no_room()
