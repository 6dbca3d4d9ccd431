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
    from sayso.ops.checks.story import MessageStory, TracedAction, TracedReply, TracedTurn

#: Characters of a text, and of a reason, on one line.
WIDTH = 300
#: The questions that a story answers, as they are printed.
_QUESTIONS = {
    "said_twice": "Why was this said twice?",
    "not_answered": "Why did it not answer?",
    "confirmed_by": "Who confirmed this?",
}
_KEPT = (
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
    """Print the whole story of one message: when it came in, who worked on it, what it asked for,
    who confirmed it, and what became of each reply.

    Give any id: the platform's of a message (MessageSid, update_id, Slack's event id) or its hash
    from the log, the platform's id of a reply, a delivery (web:12ab#3), a turn (web:12ab@7), a
    conversation (its newest turn), an action, an audit entry (3/17), or the reference that a person
    was told.
    """
    from sayso.channels.types import digest
    from sayso.ops.checks.story import answers
    from sayso.ops.checks.trace import find_stories

    if any("\ud800" <= letter <= "\udfff" for letter in what):  # what a shell gave was no UTF-8
        raise click.UsageError(
            f"{one_line(repr(what), WIDTH)} is not an id: it is not text in UTF-8"
        )
    with clear_errors():
        settings = options.load(without_secrets=True)
        stories, searched = find_stories(settings, options.data, what, show_texts=show_texts)
    if not stories:
        shown = one_line(what, WIDTH)
        where = "; ".join(searched)
        fail(
            f"nothing is known about {shown!r} (searched: {where}). {_KEPT} {digest(what.strip())!r}"
        )
    lines = [line for story in stories for line in (*_lines(story), "")]
    value = [{**asdict(story), "answers": answers(story)} for story in stories]
    options.print(
        {"searched": searched, "stories": value}, [*lines, f"searched: {'; '.join(searched)}"]
    )


def _lines(story: MessageStory) -> Iterator[str]:
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
    yield f"turn {turn.id}{f'  event={turn.event}' if turn.event else ''}"
    if turn.at:
        if turn.webhooks > 1:
            times = f" {turn.webhooks} times"
        else:
            times = ""
        yield f"  {utc_time(turn.at)}  received{times}"
    if turn.continues:
        yield f"  no message: the agent goes on after action {turn.continues}"
    if turn.text:
        yield f"  said: {one_line(turn.text, WIDTH)}"
    yield from (f"  {step}" for step in turn.steps)
    if turn.done:
        if turn.tools:
            tools = f", called {', '.join(turn.tools)}"
        else:
            tools = ""
        if turn.asked:
            asked = f", asked for a yes to {', '.join(turn.asked)}"
        else:
            asked = ""
        if turn.worker:
            worker = f" by worker {turn.worker}"
        else:
            worker = ""
        yield f"  {utc_time(turn.done)}  finished{worker} in attempt {turn.attempt}{tools}{asked}"
    yield from map(_reply_line, turn.replies)


def _reply_line(reply: TracedReply) -> str:
    if reply.at:
        at = f"{utc_time(reply.at)}  "
    else:
        at = ""
    notes = [
        f"receipt {reply.receipt}" if reply.receipt else "",
        reply.reason,
        f"“{reply.text}”" if reply.text else "",
    ]
    text = "  ".join(one_line(note, WIDTH) for note in notes if note)
    if reply.tries == 1:
        tries = "1 try"
    else:
        tries = f"{reply.tries} tries"
    return f"  {at}reply {reply.id}  {reply.state}  {tries}  {text}".rstrip()


def _action_lines(action: TracedAction) -> Iterator[str]:
    yield f"action {action.pid}{f'  {action.kind}' if action.kind else ''}"
    for event in action.events:
        if event.by:
            by = f" by message {event.by}{f' ({event.turn})' if event.turn else ''}"
        else:
            by = ""
        yield f"  {utc_time(event.at)}  {event.event}{by}"
    if not action.events:
        yield f"  {action.state or 'not known here'}; the ledger of another machine may have its entries"
    if action.user:
        yield f"  user: {one_line(action.user, WIDTH)}"
    if action.preview:
        yield f"  preview: {one_line(action.preview, WIDTH)}"
    if action.told:
        yield f"  told: {one_line(action.told, WIDTH)}"
