"""ACTION_SCRIPTS: the Lua scripts about pending actions, and what they share with other scripts.

Scripts about conversations (`workers/scripts.py`) need the same constants and some of the same
parts, because they change actions in the same step as a conversation.
"""

from __future__ import annotations

from pathlib import Path

from sayso.channels.types import OWN_KINDS, digest
from sayso.infra.redis.scripts import ScriptFolder
from sayso.pending import stored_limits
from sayso.pending.approvals.requests import ANYONE
from sayso.pending.stored_action import OPEN_STATES

#: The folder of the scripts about actions.
FOLDER = Path(__file__).parent / "lua"
#: The folder of their parts, which scripts about conversations need, too.
PARTS = FOLDER / "shared"
#: Lua lines at the beginning of each script: the id of the conversation that it is about, '-' for a
#: script about a whole shard.
FIRST_LINES = "local conversation = args.conversation"
#: Constants that the scripts share with Python: the limits of what is stored, the states of an open
#: action, and the user of a request to a whole group.
CONSTANTS = {
    **{name: value for name, value in vars(stored_limits).items() if name.isupper()},
    "OPEN_STATES": dict.fromkeys(OPEN_STATES, True),
    "NO_MESSAGE_KINDS": dict.fromkeys(OWN_KINDS, True),
    "ANYONE_USER": digest(ANYONE),
}

ACTION_SCRIPTS = ScriptFolder(
    FOLDER,
    parts=(PARTS,),
    constants=CONSTANTS,
    first_lines=FIRST_LINES,
    read_only=frozenset(
        {
            "list_requests",
            "list_started_actions",
            "load_actions",
            "load_open_action",
            "load_standing",
        }
    ),
    durable=frozenset({"change", "claim", "decide", "finish", "save_action", "start"}),
)
