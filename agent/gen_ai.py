"""GenAI names: the words of OpenTelemetry's semantic conventions for what a run does.

The library marks them as incubating and may move them; here they stay where they are.
"""

from __future__ import annotations

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
TOOL_NAME = "gen_ai.tool.name"
TOOL_TYPE = "gen_ai.tool.type"
TOOL_CALL_ID = "gen_ai.tool.call.id"
ERROR_TYPE = "error.type"

#: What people and tools said: written only where somebody asked for it.
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
SYSTEM_INSTRUCTIONS = "gen_ai.system_instructions"
TOOL_ARGUMENTS = "gen_ai.tool.call.arguments"
TOOL_RESULT = "gen_ai.tool.call.result"

#: Ours: the conventions have no word for them.
RUN_ID = "sayso.run_id"
COST_USD = "sayso.cost_usd"
STEP = "sayso.step"
STOP_REASON = "sayso.stop_reason"
ITERATIONS = "sayso.iterations"

#: The operations, and `error.type` where no class is known.
INVOKE_AGENT, CHAT, EXECUTE_TOOL, OTHER = "invoke_agent", "chat", "execute_tool", "_OTHER"
