"""The command `sayso trace`: print the story of one message."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from sayso.infra.terminal import one_line, utc_time
from sayso.ops.cli.command import (
    Options,
    SaysoCommand,
    clear_errors,
    fail,
    pass_options,
)

if TYPE_CHECKING:
    from sayso.ops.checks.story import (
        MessageStory,
        TracedAction,
        TracedReply,
        TracedRequest,
        TracedTurn,
        TracedVote,
    )

#: The most characters of a text, and of a reason, on one line.
WIDTH = 300
#: The questions that a story answers, as they are printed.
_QUESTIONS = {
    "said_twice": "Why was this said twice?",
    "not_answered": "Why did it not answer?",
    "confirmed_by": "Who confirmed this?",
}
#: Where to look for an id about which nothing is known. The hash of the id follows.
_WHERE_TO_LOOK = (
    "Give the whole id. Redis keeps the id of a message for 72 hours, the last 50 turns and replies of a conversation "
    "for a week, actions for 48 hours; a ledger keeps the actions that its machine collected. A webhook with a wrong "
    "signature is not stored: look for `hook.forbidden` in the log. For the id of another message search the log for"
)


@click.command(
    cls=SaysoCommand,
    examples=["sayso trace SM0123456789abcdef", "sayso trace 'web:12ab#3' --show-texts"],
)
@click.argument("what", metavar="EVENT|MESSAGE|ACTION|DELIVERY")
@click.option(
    "--show-texts", is_flag=True, help="Also print what was said, and who: personal data."
)
@pass_options
def trace(options: Options, what: str, *, show_texts: bool) -> None:
    """Print the whole story of one message.

    It says when the message came in, who worked on it, what it asked for, who confirmed it, and
    what became of each reply. Of an action that other people decide it says who was asked where,
    and what each of them answered.

    Give any id: the platform's of a message (MessageSid, update_id, Slack's event id) or its hash
    from the log, the platform's id of a reply, a delivery (web:12ab#3), a turn (web:12ab@7), a
    conversation (its newest turn), an action or a request about it, an audit entry (3/17), or the
    reference that a person was told.
    """
    from sayso.channels.types import digest
    from sayso.ops.checks.story import answers
    from sayso.ops.checks.trace import find_stories

    # A shell's bytes that are not UTF-8 arrive as lone surrogates, which Redis cannot be asked for.
    if any("\ud800" <= letter <= "\udfff" for letter in what):
        raise click.UsageError(
            f"{one_line(repr(what), WIDTH)} is not an id: it is not text in UTF-8"
        )

    with clear_errors():
        settings = options.load(without_secrets=True)
        stories, searched = find_stories(settings, options.data, what, show_texts=show_texts)
    if not stories:
        shown = one_line(what, WIDTH)
        where = "; ".join(searched)
        advice = f"{_WHERE_TO_LOOK} {digest(what.strip())!r}"
        fail(f"nothing is known about {shown!r} (searched: {where}). {advice}")

    lines = []
    for story in stories:
        lines += [*_lines(story), ""]
    lines.append(f"searched: {'; '.join(searched)}")
    value = [{**asdict(story), "answers": answers(story)} for story in stories]
    options.print({"searched": searched, "stories": value}, lines)


def _lines(story: MessageStory) -> Iterator[str]:
    """Yield a story as text: its turns, replies and actions, then the answers to the questions."""
    from sayso.ops.checks.story import answers

    for turn in story.turns:
        yield from _turn_lines(turn)
    for reply in story.replies:
        yield "a reply whose turn is not stored"
        yield _reply_line(reply)
    for action in story.actions:
        yield from _action_lines(action)
    for name, sentences in answers(story).items():
        yield _QUESTIONS[name]
        yield from (f"  {one_line(sentence, WIDTH)}" for sentence in sentences)


def _turn_lines(turn: TracedTurn) -> Iterator[str]:
    """Yield a turn as text, with its replies."""
    event = f"  event={turn.event}" if turn.event else ""
    yield f"turn {turn.id}{event}"

    if turn.received_at:
        times = f" {turn.webhooks} times" if turn.webhooks > 1 else ""
        yield f"  {utc_time(turn.received_at)}  received{times}"
    if turn.continues:
        yield f"  no message: the agent goes on after action {turn.continues}"
    if turn.cause:
        yield f"  no message: {turn.cause}"
    if turn.text:
        yield f"  said: {one_line(turn.text, WIDTH)}"
    yield from (f"  {step}" for step in turn.steps)

    if turn.finished_at:
        worker = f" by worker {turn.worker}" if turn.worker else ""
        line = f"  {utc_time(turn.finished_at)}  finished{worker} in attempt {turn.attempt}"
        if turn.tools:
            line += f", called {', '.join(turn.tools)}"
        if turn.asked_actions:
            line += f", asked for a yes to {', '.join(turn.asked_actions)}"
        yield line
    yield from map(_reply_line, turn.replies)


def _reply_line(reply: TracedReply) -> str:
    """Return a reply as one line."""
    notes = []
    if reply.receipt:
        notes.append(f"receipt {reply.receipt}")
    if reply.reason:
        notes.append(reply.reason)
    if reply.text:
        notes.append(f"“{reply.text}”")

    at = f"{utc_time(reply.at)}  " if reply.at else ""
    attempts = f"{reply.attempts} tries"
    if reply.attempts == 1:
        attempts = "1 try"
    text = "  ".join(one_line(note, WIDTH) for note in notes)
    return f"  {at}reply {reply.id}  {reply.state}  {attempts}  {text}".rstrip()


def _action_lines(action: TracedAction) -> Iterator[str]:
    """Yield an action as text, with each change of its state."""
    kind = f"  {action.kind}" if action.kind else ""
    yield f"action {action.action_id}{kind}"

    for event in action.events:
        turn = f" ({event.turn})" if event.turn else ""
        by = f" by message {event.by}{turn}" if event.by else ""
        yield f"  {utc_time(event.at)}  {event.event}{by}"
    if not action.events:
        state = action.state or "not known here"
        yield f"  {state}; the ledger of another machine may have its entries"

    for request in action.requests:
        yield from _request_lines(request)
    for vote in action.votes:
        yield from _vote_lines(vote)
    if action.user:
        yield f"  user: {one_line(action.user, WIDTH)}"
    if action.preview:
        yield f"  preview: {one_line(action.preview, WIDTH)}"
    if action.outcome_text:
        yield f"  told: {one_line(action.outcome_text, WIDTH)}"


def _request_lines(request: TracedRequest) -> Iterator[str]:
    """Yield the question to one person as text, with its message."""
    person = ""
    if request.person:
        person = f" to {one_line(request.person, WIDTH)}"
    note = ""
    if request.is_escalation:
        note = ", once nobody else had decided"
    closed = ""
    if request.closed_at:
        closed = f", closed at {utc_time(request.closed_at)}"
    place = f"{person} in {request.conversation}"
    yield f"  request {request.request_id}{place}: {request.ended}{note}{closed}"
    if request.reply:
        yield f"  {_reply_line(request.reply)}"


def _vote_lines(vote: TracedVote) -> Iterator[str]:
    """Yield the answer of one person as text."""
    how = "by tap" if vote.form == "tap" else "in words"
    person = f" of {one_line(vote.person, WIDTH)}" if vote.person else ""
    turn = f" ({vote.turn})" if vote.turn else ""
    yield (
        f"  {utc_time(vote.at)}  {vote.answer}{person} {how} to request {vote.request_id}, "
        f"message {vote.by}{turn}"
    )
    if vote.words:
        yield f"    said: {one_line(vote.words, WIDTH)}"
    if vote.reason:
        yield f"    reason: {one_line(vote.reason, WIDTH)}"
