"""CONVERSATION_SCRIPTS: the Lua scripts about conversations, and QUEUE_SCRIPTS, those about RQ's queue."""

from __future__ import annotations

from pathlib import Path

from sayso.infra.redis.scripts import ScriptFolder
from sayso.pending import scripts as action_scripts

_FOLDER = Path(__file__).parent / "lua"
_PARTS = (_FOLDER / "shared", action_scripts.PARTS)

CONVERSATION_SCRIPTS = ScriptFolder(
    _FOLDER,
    parts=_PARTS,
    constants=action_scripts.CONSTANTS,
    read_only=frozenset(
        {
            "forgotten_turns",
            "is_question_open",
            "loss",
            "list_deliveries",
            "list_overdue",
            "list_undelivered",
            "measure",
            "paid_messages",
            "trace",
            "turn_status",
            "waits_for_answer",
        }
    ),
    durable=frozenset(
        {
            "accept",
            "accept_from",
            "commit",
            "delivered",
            "append_journal",
            "forward",
            "identify",
            "lease",
            "notify",
        }
    ),
    # About the rate of a channel, where the bot may not write, and the ids of people. After a loss,
    # ids are learned again from the next message.
    unguarded=frozenset(
        {
            "bar_chat",
            "channel_silence",
            "channel_slot",
            "forget_identity",
            "identify",
            "is_chat_barred",
            "load_identity",
        }
    ),
)

#: The queue may have a server of its own, which holds nothing that is worth a watermark.
QUEUE_SCRIPTS = ScriptFolder(
    Path(__file__).parent / "rq" / "lua",
    parts=_PARTS,
    constants=action_scripts.CONSTANTS,
    unguarded=frozenset({"enqueue", "queued"}),
)
