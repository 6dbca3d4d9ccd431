"""LongReplies: sends of a very long reply its beginning as a message, and all of it as a file."""

from __future__ import annotations

import logging
from dataclasses import replace

from sayso.agent.channel.turn_files import TurnFiles
from sayso.agent.tools.environment import Artifact
from sayso.channels.i18n.texts import Texts
from sayso.channels.markdown.convert import plain
from sayso.channels.markdown.split import head
from sayso.channels.media_store import NoRoom, TooLarge
from sayso.channels.types import Media, Reply, Turn
from sayso.infra.concurrency import call_in_thread
from sayso.infra.storage.spooled import SpooledBytes
from sayso.pending.turn_changes import TurnChange, TurnReply

log = logging.getLogger(__name__)

#: A reply with more characters gets a file. This many characters are two messages of Telegram,
#: three of Slack, five of WhatsApp.
MAX_REPLY_CHARS = 8000
#: Characters of a longer reply that come before its file: one message of every platform.
BEGINNING_CHARS = 1200
#: The name and the type of the file.
FILENAME = "message.txt"
MIME_TYPE = "text/plain"


class LongReplies:
    """Bounds the replies of one channel. Lives as long as its agent. `files` stores the files.

    Without the bound a tool's result of 300 KB would be more than fifty messages, and every later
    message of the conversation would wait behind them. A question is sent in full, however long it
    is: a yes must not agree to what only a file says.
    """

    def __init__(self, files: TurnFiles) -> None:
        self._files = files

    async def bounded(self, turn: Turn, texts: Texts, change: TurnChange) -> TurnChange:
        """Return the change with each long reply replaced by its beginning and a file.

        If no file can be stored, the reply is cut, and says how much it leaves out. A reply that
        edits a message is cut as well, because an edit cannot add a file.
        """
        if not any(_is_too_long(turn_reply.reply) for turn_reply in change.replies):
            return change
        replies: list[TurnReply] = []
        for turn_reply in change.replies:
            reply = turn_reply.reply
            if not _is_too_long(reply):
                replies.append(turn_reply)
                continue

            file = None
            if not reply.edits:
                file = await self._store(turn, reply.text)
            if file is None:
                cut = texts.shortened(reply.text, MAX_REPLY_CHARS)
                replies.append(replace(turn_reply, reply=replace(reply, text=cut)))
                continue

            beginning = head(reply.text, BEGINNING_CHARS).rstrip()
            short = replace(reply, text=f"{beginning}\n\n{texts.in_file()}")
            replies.append(replace(turn_reply, reply=short))
            replies.append(TurnReply(Reply(media=file, only_for=reply.only_for)))
        return replace(change, replies=tuple(replies))

    async def _store(self, turn: Turn, text: str) -> Media | None:
        """Store the text as a file of the person who sent the turn.

        Return None if it cannot be stored: there is no media store, no room, or a disk failed.
        """
        words = await call_in_thread(plain, text)  # a file shows no formatting, and no escapes
        data = words.encode("utf-8", "replace")
        try:
            content = SpooledBytes(data, folder=self._files.spool_folder, most=len(data))
            artifact = Artifact(mime_type=MIME_TYPE, filename=FILENAME, content=content)
            stored_file = await self._files.store(turn, artifact)
        except (NoRoom, TooLarge, OSError) as exc:
            log.warning("media.not_stored", extra={"reason": type(exc).__name__})
            return None
        return stored_file.media


def _is_too_long(reply: Reply) -> bool:
    """Return whether a reply gets a file. A question and a reply with a file never do."""
    return len(reply.text) > MAX_REPLY_CHARS and not (reply.preview or reply.media)
