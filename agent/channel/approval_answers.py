"""ApprovalAnswers: takes the answers of people who were asked about another person's action.

A *request* is the question to such a person, in that person's own chat. The person answers it with

* a tap on one of its buttons,
* a message that names its code: `yes KMTX`,
* a message that quotes it, or in its thread.

Any other yes or no does not answer a request: the person may mean an open question of their own.

Each answer becomes a Vote, which is sent to the conversation of the action and counted there
(`approval_votes.py`). This module only checks whether the vote can count, so that the person is
told at once if it cannot.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from sayso.agent.channel.approval_events import (
    RefusalReason,
    log_refused_vote,
    log_sent_vote,
    log_unavailable_directory,
)
from sayso.agent.channel.context import TurnAnswer, TurnContext, text_change
from sayso.agent.channel.endings import texts_of
from sayso.channels.types import Conversation, Reply, Scope, Turn, without_invisible
from sayso.pending.action import MAX_NAME_CHARS
from sayso.pending.approval_rule import ApprovalRule
from sayso.pending.approvals.approvers import ActionPlace, Approvers, group_of
from sayso.pending.approvals.people import DirectoryUnavailable
from sayso.pending.approvals.requests import ANYONE, RequestedAction, codes_in
from sayso.pending.approvals.votes import Vote, VoteAnswer, VoteForm
from sayso.pending.consent.parser import ConfirmParser, read_answer, reads_phrases
from sayso.pending.forwarding import ForwardedTurn
from sayso.pending.store import PendingActionStore
from sayso.pending.stored_action import WAITING_STATES, StoredAction
from sayso.pending.turn_changes import TurnChange, TurnReply

#: The name of a note in the memory of a conversation: its person said no and must still give the
#: reason. The note has the id of the request, and when the person was asked for the reason, in Unix
#: seconds: "Xk3…:1700000000.0".
REASON_FOR = "reason_for_request"
#: For how long the next message of a person is taken as the reason, in seconds.
REASON_SECONDS = 600.0
#: The most characters of an answer that are stored. It is stored twice with the action if it has a
#: reason, and the reason is told to the asker and to the model.
MAX_WORDS_CHARS = 2000
#: A word with a punctuation mark after it, and further text, as in "no, too expensive".
_FIRST_WORD = re.compile(r"(?P<word>\w+)\s*[,.:;!\u2013\u2014-]\s*(?P<rest>\S.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _WrittenAnswer:
    """What a message says as an answer to a request."""

    answer: VoteAnswer
    #: The text after the answer, "" for none.
    reason: str = ""
    #: Whether the answer is a yes with further text, which may be a reason or a condition.
    is_conditional: bool = False


class ApprovalAnswers:
    """Takes answers to the requests of one channel. Lives as long as its agent and store."""

    def __init__(
        self, store: PendingActionStore, approvers: Approvers, parser: ConfirmParser
    ) -> None:
        self._store = store
        self._approvers = approvers
        self._parser = parser

    async def answer_tap(self, context: TurnContext, request: StoredAction) -> TurnAnswer:
        """Answer a tap on a button of a request.

        The buttons of a request to one person work for that person only. `request` is the request
        that was tapped, verified or not.
        """
        turn = context.turn
        owner = request.action.user_id
        if owner not in (ANYONE, turn.user_id):
            return _refused(context, request, "not_yours")
        press = None
        if turn.tap:
            scope = replace(turn.scope, user_id=owner)
            press = self._store.signer.read_button(turn.tap.data, scope)
        if press is None or press.action_id != request.action_id:
            return _refused(context, request, "stale_button")
        answer: VoteAnswer = "yes" if press.intent == "confirm" else "no"
        return await self._answer(context, request, answer, "tap")

    async def answer_message(self, context: TurnContext) -> TurnAnswer | None:
        """Take a message as an answer to a request, or as the reason for an earlier answer.

        Return None for any other message.
        """
        turn = context.turn
        if not turn.decides:
            return None
        answered = await self._answer_with_reason(context)
        if answered:
            return answered
        # Most messages end here. The store is read only for a message that may name a request.
        codes = codes_in(turn.text)
        is_in_thread_of_bot = bool(turn.conversation.thread) and not turn.thread_author
        if not (codes or turn.replied_to or is_in_thread_of_bot):
            return None

        requests = await self._requests(context)
        for request in requests:
            requested = RequestedAction.of(request.action)
            words = turn.text
            rest = ""
            if requested.code in codes:
                if _is_ambiguous(requested.code, requests):
                    return _how_to_answer(request)
                words, rest = _around_code(turn.text, requested.code)
            elif not _quotes(turn, request) and not _is_in_thread(context, request):
                continue
            written = self._read(request.action.language, words, rest)
            if written is None:
                continue
            rule = ApprovalRule.from_dict(requested.rule)
            if written.is_conditional and not rule.needs_reason("yes"):
                return _how_to_answer(request)
            answered = await self._answer(
                context, request, written.answer, "words", reason=written.reason
            )
            return answered.marked_about(request)
        return None

    async def say_how_to_answer(self, context: TurnContext) -> TurnAnswer | None:
        """Say how to answer a request, after a plain yes or no without any open question.

        Return None if the person has no open request.
        """
        requests = await self.open_requests(context)
        if not requests:
            return None
        return _how_to_answer(requests[0])

    async def open_requests(self, context: TurnContext) -> Sequence[StoredAction]:
        """Return the open requests to this person alone, the newest first."""
        return [
            each
            for each in await self._requests(context)
            if each.state in WAITING_STATES and each.action.user_id != ANYONE
        ]

    async def _answer(
        self,
        context: TurnContext,
        request: StoredAction,
        answer: VoteAnswer,
        form: VoteForm,
        *,
        reason: str = "",
    ) -> TurnAnswer:
        """Send the answer to the conversation of the action, or say why it does not count.

        The first row that fits counts:

        | the answer                                | what happens                            |
        |-------------------------------------------|-----------------------------------------|
        | its request is over, or was changed       | the person is told                      |
        | the person may not decide                 | the person is told                      |
        | the rule wants a reason, and there is none | the person is asked for it             |
        | any other                                 | a vote is sent                          |
        """
        texts = texts_of(request)
        if request.is_changed:
            return _refused(context, request, "changed")
        # An answer may come in before the store knows that the request was delivered.
        if request.state not in WAITING_STATES:
            return _refused(context, request, "over")

        requested = RequestedAction.of(request.action)
        rule = ApprovalRule.from_dict(requested.rule)
        vote = _vote(context, request, requested, answer, form, reason)
        refusal = await self._why_not(context, requested, rule, vote)
        if refusal:
            return _refused(context, request, refusal)
        if rule.needs_reason(answer) and not reason:
            context.memory.notes.pop(REASON_FOR, "")
            # The next message may mean something else. A no that it completes does no harm. With a
            # yes it would carry out the action, so a yes and its reason must name the request.
            if answer == "no":
                context.memory.notes[REASON_FOR] = f"{request.action_id}:{context.received_at}"
            text = texts.ask_reason(request.action.preview, answer, requested.code)
            return TurnAnswer(text_change(text))
        return self._sent(context, requested, vote)

    async def _why_not(
        self, context: TurnContext, requested: RequestedAction, rule: ApprovalRule, vote: Vote
    ) -> RefusalReason | None:
        """Return why the person of a vote may not decide, None if they may.

        This is for a quick answer. The conversation of the action finds out again.
        """
        try:
            asker = await self._approvers.person_of(requested.home.channel, requested.asker_ids)
            voter = await self._approvers.person_of(vote.channel, vote.user_ids)
            place = ActionPlace(requested.home, asker, frozenset(requested.asker_known_as))
            if place.is_asker(voter):
                return "own_request"
            # Whether those who come later may decide already, only the action knows.
            all_deciders = rule.deciders_at(rule.within_seconds)
            decider = await self._approvers.may_decide(
                vote,
                all_deciders,
                place,
                group_of(rule, requested.home),
                context.received_at,
            )
        except DirectoryUnavailable as exc:
            log_unavailable_directory(requested.action_id, exc)
            return "directory_unavailable"
        return None if decider else "not_a_decider"

    def _sent(self, context: TurnContext, requested: RequestedAction, vote: Vote) -> TurnAnswer:
        """Return the answer that sends a vote to the conversation of the action."""
        context.memory.notes.pop(REASON_FOR, "")
        turn = Turn(
            event_id=vote.turn_event_id,
            conversation=requested.home,
            user_id=requested.asker,
            user_name=requested.asker_name,
            aliases=requested.asker_aliases,
            kind="vote",
            request_event=vote.sealed(self._store.signer).to_json(),
        )
        log_sent_vote(vote)
        forward = ForwardedTurn(turn, requested.action_id, context.received_at)
        return TurnAnswer(TurnChange(forwards=(forward,)))

    async def _answer_with_reason(self, context: TurnContext) -> TurnAnswer | None:
        """Take a message as the reason for a no. Return None for any other message.

        A plain yes or no is no reason: the person may mean an open question of their own.
        """
        note = context.memory.notes.get(REASON_FOR, "")
        if not note or self._intent(context.texts.language, context.turn.text):
            return None
        del context.memory.notes[REASON_FOR]
        request_id, _, asked_at = note.partition(":")
        if context.received_at - float(asked_at) > REASON_SECONDS:
            return None
        # A message with a code answers the request that it names.
        if codes_in(context.turn.text):
            return None
        requests = await self._requests(context)
        request = next((each for each in requests if each.action_id == request_id), None)
        if request is None:
            return None
        answered = await self._answer(context, request, "no", "words", reason=context.turn.text)
        return answered.marked_about(request)

    async def _requests(self, context: TurnContext) -> Sequence[StoredAction]:
        """Return the requests to this person and this group: open ones first, the newest first."""
        turn = context.turn
        # The id of a direct chat is that of the person.
        direct = Conversation(turn.conversation.channel, turn.user_id)
        scopes = [Scope(turn.user_id, direct)]
        if turn.in_group:
            # A person may answer in a thread a request that is not in the thread.
            threads = dict.fromkeys((turn.conversation.thread, ""))
            scopes += [
                Scope(ANYONE, replace(turn.conversation, thread=thread)) for thread in threads
            ]
        requests: list[StoredAction] = []
        for scope in scopes:
            found = await self._store.repository.list_requests(scope.conversation.id, scope.id)
            verified = [each.verified(self._store.signer, scope) for each in found]
            requests += [each for each in verified if not each.is_changed]
        return sorted(requests, key=lambda each: each.state not in WAITING_STATES)

    def _read(self, language: str, words: str, rest: str) -> _WrittenAnswer | None:
        """Read a written answer: a yes or no, and a reason after it. None for other words.

        * `language`: the language of the request, which says what to write. The channel may have
          another one.
        * `words`: the text before the code of the request, or the whole message without a code.
        * `rest`: the text after the code, "" for none.

        | the message             | is read as                                     |
        |-------------------------|------------------------------------------------|
        | yes KMTX                | yes                                            |
        | KMTX: yes               | yes                                            |
        | yes KMTX please         | yes: "yes please" is one                       |
        | yes KMTX but only 10    | a yes with a condition, which may be a reason  |
        | no KMTX too expensive   | no, and the reason                             |
        | no, too expensive       | no, and the reason                             |
        """
        if not words:
            words = rest
            rest = ""
        match self._intent(language, words):
            case "cancel":
                return _WrittenAnswer("no", rest)
            case "confirm" if rest and self._intent(language, f"{words} {rest}") == "confirm":
                return _WrittenAnswer("yes")
            case "confirm":
                return _WrittenAnswer("yes", rest, is_conditional=bool(rest))
        first = _FIRST_WORD.fullmatch(words)
        if first and self._intent(language, first["word"]) == "cancel":
            reason = f"{first['rest']} {rest}".strip()
            return _WrittenAnswer("no", reason)
        return None

    def _intent(self, language: str, words: str) -> Literal["confirm", "cancel", ""]:
        """Return whether words are a yes or a no, in a language of the channel or in this one."""
        parser = self._parser
        if reads_phrases(parser):
            parser = parser.reading((language,))
        intent = read_answer(parser, words, language).intent
        return intent if intent in ("confirm", "cancel") else ""


def _vote(
    context: TurnContext,
    request: StoredAction,
    requested: RequestedAction,
    answer: VoteAnswer,
    form: VoteForm,
    reason: str,
) -> Vote:
    """Return the vote for an answer to a request, without a seal."""
    turn = context.turn
    place = turn.conversation
    question_message_id = turn.message_id if form == "tap" else turn.replied_to
    return Vote(
        action_id=requested.action_id,
        record_mac=requested.record_mac,
        answer=answer,
        form=form,
        channel=place.channel,
        user_id=turn.user_id,
        conversation=place.id,
        chat=place.chat,
        thread=place.thread,
        event_id=turn.event_id,
        at=context.received_at,
        user_name=without_invisible(turn.user_name)[:MAX_NAME_CHARS],
        aliases=turn.aliases,
        words=_shortened(turn.text) if form == "words" else "",
        reason=_shortened(reason),
        question_message_id=question_message_id,
        request_id=request.action_id,
    )


def _is_ambiguous(code: str, requests: Sequence[StoredAction]) -> bool:
    """Return whether open requests about several actions have this code, which is drawn by lot."""
    open_requests = [each for each in requests if each.state in WAITING_STATES]
    requested = [RequestedAction.of(each.action) for each in open_requests]
    return len({each.action_id for each in requested if each.code == code}) > 1


def _shortened(text: str) -> str:
    """Return the beginning of an answer, of at most MAX_WORDS_CHARS, to be stored and told."""
    if len(text) <= MAX_WORDS_CHARS:
        return text
    return f"{text[: MAX_WORDS_CHARS - 1]}…"


def _quotes(turn: Turn, request: StoredAction) -> bool:
    """Return whether a message quotes the request."""
    return _is_in_chat_of(turn, request) and turn.replied_to in _messages_of(request)


def _is_in_chat_of(turn: Turn, request: StoredAction) -> bool:
    """Return whether a message is in the chat of the request: a direct chat, or else that group.

    The ids of messages are unique in a chat only: on Telegram, another message of a group may have
    the id of a request in the person's direct chat.
    """
    is_in_group = request.action.user_id == ANYONE
    return turn.in_group == is_in_group


def _is_in_thread(context: TurnContext, request: StoredAction) -> bool:
    """Return whether a message is in the thread of an open request, and can only mean the request.

    A yes in such a thread may also answer an open question of the person. After the decision it may
    answer the model.
    """
    if context.open_action or request.state not in WAITING_STATES:
        return False
    if not _is_in_chat_of(context.turn, request):
        return False
    return context.turn.conversation.thread in _messages_of(request)


def _messages_of(request: StoredAction) -> frozenset[str]:
    """Return the platform's ids of the messages that show the request."""
    return frozenset({request.question_message, *request.question_messages} - {""})


def _around_code(text: str, code: str) -> tuple[str, str]:
    """Return the text before a code, in upper or lower case, and the text after it."""
    match = re.search(re.escape(code), text, re.IGNORECASE)
    if match is None:
        return text, ""
    before = text[: match.start()]
    after = text[match.end() :]
    return before.strip(" ,.:;#"), after.strip(" ,.:;")


def _how_to_answer(request: StoredAction) -> TurnAnswer:
    """Return the answer that says how to answer a request."""
    code = RequestedAction.of(request.action).code
    return TurnAnswer(text_change(texts_of(request).which_request(request.action.preview, code)))


def _refused(context: TurnContext, request: StoredAction, reason: RefusalReason) -> TurnAnswer:
    """Return the answer that tells a person why their answer to a request does not count."""
    channel = context.turn.conversation.channel
    log_refused_vote(channel, reason, request_id=request.action_id)
    return _only_for_sender(context.turn, _refusal_text(context, request, reason))


def _refusal_text(context: TurnContext, request: StoredAction, reason: RefusalReason) -> str:
    """Return the text for a person whose answer to a request does not count."""
    texts = context.texts
    match reason:
        case "not_yours":
            return texts.not_yours()
        case "changed":
            return texts.request_changed()
        case "early" | "over":
            request_texts = texts_of(request)
            outcome = request.outcome_text or request_texts.undecided_request()
            return request_texts.request_over(outcome)
        case "own_request":
            return texts.own_request()
        case "not_a_decider":
            return texts.not_a_decider()
        case "directory_unavailable":
            return texts.deciders_unknown()
    return texts.stale()


def _only_for_sender(turn: Turn, text: str) -> TurnAnswer:
    """Return an answer that only the sender of the turn sees, if the platform can do that."""
    reply = Reply(text)
    if turn.in_group:
        callback_id = turn.tap.callback_id if turn.tap else ""
        reply = replace(
            reply, only_for=turn.user_id, only_for_act=callback_id, answers_tap=callback_id
        )
    return TurnAnswer(TurnChange(replies=(TurnReply(reply),)))
