"""Names of OpenTelemetry's semantic conventions for generative AI.

They are those of attributes, operations and metrics.
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

#: Content of messages and tool calls: written only with `include_content`.
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
SYSTEM_INSTRUCTIONS = "gen_ai.system_instructions"
TOOL_ARGUMENTS = "gen_ai.tool.call.arguments"
TOOL_RESULT = "gen_ai.tool.call.result"

#: Request settings: a vendor's name -> the name in the conventions.
#: Gemini writes them in camelCase.
REQUEST_SETTINGS = {
    spelling: f"gen_ai.request.{name}"
    for name in (
        *("max_tokens", "temperature", "top_p", "top_k", "seed"),
        *("frequency_penalty", "presence_penalty", "stop_sequences"),
    )
    for spelling in (name, re.sub("_(.)", lambda letter: letter[1].upper(), name))
} | {"stop": "gen_ai.request.stop_sequences"}

#: Our name of a provider -> its name in the conventions, where they differ.
PROVIDER_NAMES = {"gemini": "gcp.gemini"}

#: Metrics with the bucket boundaries that the conventions recommend.
TOKEN_USAGE = "gen_ai.client.token.usage"  # noqa: S105  # the name of a metric
OPERATION_DURATION = "gen_ai.client.operation.duration"
TOKEN_BUCKETS = tuple(4**exponent for exponent in range(14))
SECONDS_BUCKETS = tuple(0.01 * 2**exponent for exponent in range(14))

#: Names of our own, for what the conventions do not cover.
RUN_ID = "sayso.run_id"
COST_USD = "sayso.cost_usd"
STEP = "sayso.step"
FAILURE = "sayso.failure"
CUT_OFF = "sayso.answers.cut_off"
STOP_REASON = "sayso.stop_reason"
ITERATIONS = "sayso.iterations"

#: The operations, and the `error.type` of an error whose class is unknown.
INVOKE_AGENT = "invoke_agent"
CHAT = "chat"
EXECUTE_TOOL = "execute_tool"
OTHER = "_OTHER"
