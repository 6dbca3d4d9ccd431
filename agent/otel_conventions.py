"""Names of attributes, operations and metrics, as OpenTelemetry's conventions define them.

These are the semantic conventions for generative AI. Names that begin with `sayso.` are ours, for
what the conventions do not cover.
"""

from __future__ import annotations

import re

OPERATION = "gen_ai.operation.name"
AGENT_NAME = "gen_ai.agent.name"
CONVERSATION = "gen_ai.conversation.id"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
RESPONSE_MODEL = "gen_ai.response.model"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHE_READ_TOKENS = "gen_ai.usage.cache_read.input_tokens"
CACHE_WRITE_TOKENS = "gen_ai.usage.cache_creation.input_tokens"
FINISH_REASONS = "gen_ai.response.finish_reasons"
RESPONSE_ID = "gen_ai.response.id"
OUTPUT_TYPE = "gen_ai.output.type"
REQUEST_STREAM = "gen_ai.request.stream"
TOKEN_TYPE = "gen_ai.token.type"  # noqa: S105  # the name of an attribute
SERVER_ADDRESS = "server.address"
SERVER_PORT = "server.port"
HTTP_STATUS = "http.response.status_code"
TOOL_NAME = "gen_ai.tool.name"
TOOL_TYPE = "gen_ai.tool.type"
TOOL_CALL_ID = "gen_ai.tool.call.id"
ERROR_TYPE = "error.type"

# The content of messages and tool calls, which is written only with `include_content`.
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
SYSTEM_INSTRUCTIONS = "gen_ai.system_instructions"
TOOL_ARGUMENTS = "gen_ai.tool.call.arguments"
TOOL_RESULT = "gen_ai.tool.call.result"

#: The settings of a request that the conventions know.
_SETTINGS = (
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "seed",
    "frequency_penalty",
    "presence_penalty",
    "stop_sequences",
)


def _camel_case(name: str) -> str:
    """Return `top_p` as `topP`, as Gemini spells it."""
    return re.sub("_(.)", lambda letter: letter[1].upper(), name)


#: The attribute of a request setting, by the name that a vendor has for the setting.
REQUEST_SETTINGS = {
    **{name: f"gen_ai.request.{name}" for name in _SETTINGS},
    **{_camel_case(name): f"gen_ai.request.{name}" for name in _SETTINGS},
    "stop": "gen_ai.request.stop_sequences",
}

#: The conventions' name of a provider, by our name, where the two differ.
PROVIDER_NAMES = {"gemini": "gcp.gemini"}

# Metrics, with the bucket boundaries that the conventions recommend.
TOKEN_USAGE = "gen_ai.client.token.usage"  # noqa: S105  # the name of a metric
OPERATION_DURATION = "gen_ai.client.operation.duration"
TOKEN_BUCKETS = tuple(4**exponent for exponent in range(14))
SECONDS_BUCKETS = tuple(0.01 * 2**exponent for exponent in range(14))

# Attributes and metrics that the conventions do not cover.
RUN_ID = "sayso.run_id"
COST_USD = "sayso.cost_usd"
STEP = "sayso.step"
FAILURE = "sayso.failure"
CUT_OFF = "sayso.answers.cut_off"
STOP_REASON = "sayso.stop_reason"
ITERATIONS = "sayso.iterations"

# The operations.
INVOKE_AGENT = "invoke_agent"
CHAT = "chat"
EXECUTE_TOOL = "execute_tool"

#: The `error.type` of an error whose class is unknown.
ERROR_OTHER = "_OTHER"
