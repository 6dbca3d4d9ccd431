"""CONVERSATION_SCRIPTS, the Lua scripts about conversations, and QUEUE_SCRIPTS, about RQ's queue.

Each script that stores work also queues the RQ job that wakes a worker. Where the queue has a
server of its own, a script cannot reach it: then WakingScripts queues the job right after the
script. If the process dies between the two, the job is missing and the work is stored:
`workers/recovery.py` finds it and queues the job.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from redis import Redis

from sayso.infra.redis.client import PREFIX
from sayso.infra.redis.scripts import NO_ARGUMENTS, Arguments, Payload, ScriptFolder, Tag
from sayso.pending import scripts as action_scripts
from sayso.pending.sharded_scripts import ShardedScripts
from sayso.workers.wake_ups import WakeStep

_FOLDER = Path(__file__).parent / "lua"
#: The parts of these scripts, and those about actions: both kinds of scripts change actions.
_PARTS = (_FOLDER / "shared", action_scripts.PARTS)
#: QUEUE_IS_ELSEWHERE: whether the queue has a server of its own.
_CONSTANTS = {**action_scripts.CONSTANTS, "QUEUE_IS_ELSEWHERE": False}

#: `read_only` scripts write nothing. `durable` ones wait until the replicas have their writes.
#: `unguarded` ones run also where Redis has lost writes; all others stop there until an operator
#: resumes them. `ScriptFolder` says more about each.
CONVERSATION_SCRIPTS = ScriptFolder(
    _FOLDER,
    parts=_PARTS,
    constants=_CONSTANTS,
    first_lines=action_scripts.FIRST_LINES,
    read_only=frozenset(
        {
            "forgotten_turns",
            "is_question_open",
            "list_deliveries",
            "list_overdue",
            "list_undelivered",
            "measure",
            "paid_messages",
            "report_loss",
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
            "end_question",
            "forward_question",
            "forward_reply",
            "forward_turn",
            # The turn is stored under the key that this script returns. If the ids were lost
            # afterwards, a person who writes from a new number would not find their conversation.
            "identify",
            "lease",
            "send_busy_notice",
        }
    ),
    # These store the rate of a channel, the chats in which the bot may not write, and the ids of
    # people. A loss of them is no reason to stop: the next messages teach them again.
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

#: The same scripts where the queue has a server of its own. A script that may wake a worker also
#: returns whether it does (`shared/queue.lua`).
_QUEUE_ELSEWHERE = replace(
    CONVERSATION_SCRIPTS,
    constants={**_CONSTANTS, "QUEUE_IS_ELSEWHERE": True},
    # What each script with the part `queue` returns in place of its answer. `or false`, because
    # Redis ends a list at the first nil; false becomes None in Python.
    answers={"queue": "{answer or false, wake}"},
)

#: The scripts that run on the server of the queue. It holds nothing that must not be lost: the
#: conversations say what work there is.
QUEUE_SCRIPTS = ScriptFolder(
    Path(__file__).parent / "rq" / "lua",
    parts=_PARTS,
    constants=_CONSTANTS,
    first_lines=action_scripts.FIRST_LINES,
    unguarded=frozenset({"enqueue", "queued"}),
)


class WakingScripts(ShardedScripts):
    """The scripts about conversations, where the queue has a server of its own. One per process.

    After a script that stored work for a worker, `wake` is called.
    """

    def __init__(self, client: Redis, wake: WakeStep, *, prefix: str = PREFIX) -> None:
        super().__init__(client, _QUEUE_ELSEWHERE, prefix=prefix)
        self._wake = wake
        self._may_wake = {name for name, script in self._scripts.items() if "queue" in script.parts}

    async def arun_on(
        self, name: str, tag: Tag, args: Arguments = NO_ARGUMENTS, *payloads: Payload
    ) -> Any:
        """Run a script on the keys of a hash tag, and wake a worker if the script says so.

        A hash tag is the part of a key in braces: keys with the same one lie on the same server.

        Return the answer of the script.
        """
        result = await super().arun_on(name, tag, args, *payloads)
        if name not in self._may_wake:
            return result

        # `wake` is None for no worker, "usual", or "urgent" for a job ahead of all others.
        answer, wake = result
        if wake:
            is_urgent = wake == "urgent"
            await self._wake(args["conversation"], is_urgent)
        return answer
