"""ConversationKeys: what a vendor is told so that the requests of one conversation reach the same prompt cache."""

from __future__ import annotations

import hmac
import os
import secrets

from sayso.agent.config import AgentConfig
from sayso.agent.run.state import RunState
from sayso.pending.action import derived_keys

#: The length of a key. OpenAI takes at most 64 characters.
KEY_CHARS = 32
#: The secret of a process that has none in its configuration or environment. Its keys are of no use to other processes.
_PROCESS_SECRET = secrets.token_bytes(32)


def conversation_secret(secret_keys: list[str]) -> bytes:
    """Return the secret for an AgentConfig. All processes with the same first secret key have the same."""
    return derived_keys(secret_keys[:1], "sayso.conversation")[0]


class ConversationKeys:
    """Makes the keys of one agent's conversations. Lives as long as the agent's ModelCaller, and keeps no conversation.

    A key is a MAC of the agent's name and the conversation's scope or session, which hold ids and phone numbers. A hash
    without a secret could be guessed for every phone number there is.
    """

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self._secret = config.conversation_secret or _secret_of_environment()
        #: What names the agent's own conversation, which lives in this process alone.
        self._own_name = secrets.token_hex(16)

    def key_of(self, run: RunState) -> str | None:
        """Return the key of the conversation that a run belongs to; None if it belongs to none that has a name."""
        kind, name = "own", self._own_name
        if run.request.scope:
            kind, name = "scope", run.request.scope
        elif run.request.memory is not None or run.memory is None:
            return None
        elif self._config.session_id is not None:
            kind, name = "session", self._config.session_id
        text = "\0".join((self._config.name, kind, name))
        return hmac.digest(self._secret, text.encode("utf-8", "surrogatepass"), "sha256").hex()[:KEY_CHARS]


def _secret_of_environment() -> bytes:
    keys = [key.strip() for key in os.environ.get("SAYSO_SECRET_KEYS", "").split(",") if key.strip()]
    return conversation_secret(keys) if keys else _PROCESS_SECRET
