"""ConversationKeys: names the conversation of each request, for the prompt caches of vendors."""

from __future__ import annotations

import hmac
import os
import secrets

from sayso.agent.config import AgentConfig
from sayso.agent.run.state import RunState
from sayso.pending.action import derived_keys

#: The length of a key. OpenAI takes at most 64 characters.
KEY_CHARS = 32
#: The secret of a process that has none in its configuration or environment. No other process has
#: the same keys.
_PROCESS_SECRET = secrets.token_bytes(32)


def conversation_secret(secret_keys: list[str]) -> bytes:
    """Return the secret for an AgentConfig, derived from the first of the secret keys."""
    return derived_keys(secret_keys[:1], "sayso.conversation")[0]


class ConversationKeys:
    """Makes the keys of one agent's conversations. Lives as long as the agent's ModelCaller.

    A key is a MAC of the agent's name and the conversation's scope or session, which contain ids
    and phone numbers. A hash without a secret could be reversed by trying all phone numbers.
    """

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self._secret = config.conversation_secret or _secret_of_environment()
        #: The name of the agent's own conversation, which exists only in this process.
        self._own_name = secrets.token_hex(16)

    def key_of(self, run: RunState) -> str | None:
        """Return the key of the conversation that a run belongs to; None for one without a name."""
        name = self._name_of(run)
        if name is None:
            return None
        text = f"{self._config.name}\0{name}"
        mac = hmac.digest(self._secret, text.encode("utf-8", "surrogatepass"), "sha256")
        return mac.hex()[:KEY_CHARS]

    def _name_of(self, run: RunState) -> str | None:
        """Return the name of a run's conversation; None if nothing names it."""
        if run.request.scope:
            return f"scope\0{run.request.scope}"
        if run.request.memory is not None or run.memory is None:
            return None
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
