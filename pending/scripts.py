"""ACTION_SCRIPTS: the Lua scripts about pending actions, and what all scripts know of them."""

from __future__ import annotations

from pathlib import Path

from sayso.infra.redis.scripts import ScriptFolder
from sayso.pending import limits
from sayso.pending.stored_action import OPEN_STATES

#: The folder of the scripts, and the one of the parts that scripts about conversations need, too.
FOLDER = Path(__file__).parent / "lua"
PARTS = FOLDER / "shared"
#: The beginning of each script: what it is about.
FIRST_LINES = "local conversation = args.conversation"
#: Constants that the scripts share with Python: the limits, and the states of an open action.
CONSTANTS = {
    **{name: value for name, value in vars(limits).items() if name.isupper()},
    "OPEN_STATES": dict.fromkeys(OPEN_STATES, True),
}

ACTION_SCRIPTS = ScriptFolder(
    FOLDER,
    parts=(PARTS,),
    constants=CONSTANTS,
    first_lines=FIRST_LINES,
    read_only=frozenset({"list_started_actions", "load_actions", "load_open_action"}),
    durable=frozenset({"change", "claim", "decide", "finish", "save_action", "start"}),
)
