"""ConversationKeys: names the conversation of each request, for the prompt caches of vendors.

A vendor sends requests with the same key to the machine that has their common beginning in its
cache.
"""

from __future__ import annotations

import hmac
import os
import secrets

from sayso.agent.config import AgentConfig
from sayso.agent.run.state import RunState
from sayso.pending.action import derived_keys

#: The length of a key in hex digits. 128 bits are enough that no two conversations share a key.
#: OpenAI takes at most 64 characters.
KEY_CHARS = 32
#: The secret of programs that give their AgentConfig none and do not set SAYSO_SECRET_KEYS. No
#: other process has the same, so it makes other keys.
_PROCESS_SECRET = secrets.token_bytes(32)


def conversation_secret(secret_keys: list[str]) -> bytes:
    """Return the secret for an AgentConfig, derived from the first of the secret keys.

    Keys are only made, never verified, so the older secret keys are not needed. A new first one
    costs each conversation one miss in the vendor's cache. Raises ValueError for an empty list.
    """
    return derived_keys(secret_keys[:1], "sayso.conversation")[0]


class ConversationKeys:
    """Makes the keys of one agent's conversations. Lives as long as the agent's ModelCaller.

    A key is a MAC of the agent's name and the conversation's scope or session, which contain ids
    and phone numbers. A hash without a secret could be reversed by trying all phone numbers.
    """

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self._secret = config.conversation_secret or _secret_of_environment()
        #: Names the agent's own memory. It is random, because no other process has this memory.
        self._own_name = secrets.token_hex(16)

    def key_of(self, run: RunState) -> str | None:
        """Return the key of the conversation that a run belongs to; None if it has no name."""
        name = self._conversation_name(run)
        if name is None:
            return None
        text = f"{self._config.name}\0{name}"
        # A program may give a scope or session id that is no valid Unicode: it gets a key, too.
        mac = hmac.digest(self._secret, text.encode("utf-8", "surrogatepass"), "sha256")
        return mac.hex()[:KEY_CHARS]

    def _conversation_name(self, run: RunState) -> str | None:
        """Return what names a run's conversation, behind the kind of name; None if nothing does.

        With the kind, a scope and a session of the same name have different keys.
        """
        # A channel gives the person's scope and, as `request.memory`, the stored history of it. So
        # the scope counts first.
        if run.request.scope:
            return f"scope\0{run.request.scope}"

        # The caller brought a history without a name, such as a branch for one run of a batch.
        if run.request.memory is not None:
            return None
        # Without a history, no other run continues this one.
        if run.memory is None:
            return None

        # The history is the agent's: stored as a session, or only in this process.
        if self._config.session_id is not None:
            return f"session\0{self._config.session_id}"
        return f"own\0{self._own_name}"


def _secret_of_environment() -> bytes:
    """Return the secret of SAYSO_SECRET_KEYS, else that of this process."""
    listed_keys = os.environ.get("SAYSO_SECRET_KEYS", "").split(",")
    keys = [key.strip() for key in listed_keys if key.strip()]
    if keys:
        return conversation_secret(keys)
    return _PROCESS_SECRET
