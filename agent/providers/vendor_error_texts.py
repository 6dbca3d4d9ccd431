"""What the text of a vendor's error says, where its status and its code do not.

Many vendors and servers send the same status for different faults. Their message tells whether the
request is too long, the account has no money, a content filter stopped the request, the model wrote
a broken call, or the operator has to mend something. The patterns match messages of real servers.
"""

from __future__ import annotations

import re
from typing import Literal

#: What the operator has to mend where a vendor gives no access: the account's money, the key, the
#: rights of the key, the name of the model or the address, a setting, the tools, or the region.
#: `access_fault` below finds five of them in a text. "credit" is what `says_no_credit` finds, and
#: "rights" follows from the status 403 alone.
AccessFault = Literal["credit", "key", "rights", "model", "setting", "tools", "region"]

#: How vendors and servers say that a request is longer than the model's context window.
_TOO_LONG = re.compile(
    r"context.?length|context.?window|maximum context|context.?size"
    r"|(?:prompt|input) is too long|too many tokens:"
    r"|maximum (?:prompt|model|input) length|range of input length|more than max tokens allowed"
    r"|exceed\w* (?:the )?(?:maximum number of tokens|maximum length|max length|context limit)"
    r"|exceed\w* (?:the )?(?:model token limit|configured limit of \d+ tokens)"
    r"|reduce the length of the (?:messages|prompt)|tokens must be reduced|string too long"
    r"|\binputs`? (?:tokens\b.{0,40} must be <=|must have less than \d+ tokens)",
    re.IGNORECASE,
)
#: How vendors, and gateways between, say that an account has no money or that its budget is spent.
#: They send it with the statuses of other faults: 400, 403 and 429.
#:
#: Gemini says "You exceeded your current quota, please check your plan and billing details" of
#: limits of one minute too, so that text does not match. Where the account's plan does not have the
#: model, Gemini adds "limit: 0", which does match.
_NO_CREDIT = re.compile(
    r"credit balance|balance is (?:too low|insufficient|not enough)"
    r"|insufficient[_ ](?:account[_ ])?(?:user[_ ])?(?:balance|credit|fund|quota)"
    r"|not enough (?:credit|balance|fund)"
    # "purchase more credits"
    r"|(?:out of|no|more|used all available|exhausted\b.{0,40}) credits"
    r"|credits? (?:limit exceeded|(?:(?:is|are|have been) )?(?:depleted|exhausted|used up))"
    r"|exceeded your .{0,40}\bcredits|\bkey limit exceeded"
    r"|budget (?:has been |was )?exceeded|exceeded[_ ]?budget|budget_exceeded"
    r"|over budget|crossed budget"
    r"|arrearage|overdue.payment|payment (?:is )?(?:required|overdue)"
    r"|(?:billing|spend(?:ing)?|usage)[_ ](?:hard[_ ])?limit"
    r"|billing_not_active|check your billing details|exceeded_current_quota"
    r"|account (?:is |has been )?(?:suspended|disabled|not active|deactivated)"
    r"|organization has been (?:disabled|suspended|restricted)|enable billing|spending cap"
    # A limit of 0, but not of 0.5 or 0,5.
    r"|\blimit: 0(?![\d.,]\d)"
    # "insufficient balance", "in arrears"
    r"|余额不足|欠费",
    re.IGNORECASE,
)
#: How vendors name a limit of a whole day.
_DAILY_LIMIT = re.compile(
    r"\bper[ -]day\b|\b(?:RPD|TPD)\b|\bdaily (?:\w+ )?(?:limit|quota)",
    re.IGNORECASE,
)
#: How vendors say that their content filter stopped a request, whatever the status.
_FILTERED = re.compile(
    r"content[_ ]filter|content_policy_violation|content management policy|moderation_blocked"
    r"|(?:input|prompt|content) was flagged"
    r"|(?:violat\w+|against) (?:our |the )?usage (?:polic|guidelines)"
    r"|data_inspection_failed|inappropriate content|sensitive content"
    r"|content exists risk|safety system",
    re.IGNORECASE,
)
#: How servers say that the model wrote a call that they cannot read, or that the model crashed.
_BROKEN_ANSWER = re.compile(
    r"tool_use_failed|output_parse_failed|tool call validation failed|model has crashed",
    re.IGNORECASE,
)
#: How vendors say that they do not serve the country of the request.
_WRONG_REGION = re.compile(
    r"(?:user location|country, region, or territory) (?:is )?not supported",
    re.IGNORECASE,
)
#: How vendors refuse a key with the status of a refused request.
_WRONG_KEY = re.compile(
    r"(?:incorrect|invalid|expired|unknown) api.?key"
    r"|api.?key (?:is )?(?:not valid|invalid|expired)|\bexpired.key\b",
    re.IGNORECASE,
)
#: How vendors refuse the name of a model with the status of a refused request.
_UNKNOWN_MODEL = re.compile(
    r"\b(?:invalid|unknown) model\b(?! (?:output|response|answer|error))|not a valid model"
    r"|no models? loaded|model identifier is invalid"
    r"|\bmodel[ _:]not[ _](?:exist|found|available|supported)"
    r"|\bmodel\b.{0,80}(?:does not exist|decommissioned|not supported by any)"
    r"|\bmodel\b.{0,80}requires terms acceptance",
    re.IGNORECASE,
)
#: How servers say that the model takes no tools, or refuse one of them. Some only put the field of
#: the request in front of their message, as in "tools.0.name: should match a pattern".
_REFUSED_TOOLS = re.compile(
    r"does not support (?:tools|tool use|tool calling|function calling)"
    r"|tool choice requires|tools param requires"
    r"|^\W*tools\b|\btools\[\d|schema for function"
    # Gemini's name for the field
    r"|\bfunction_declarations\b",
    re.IGNORECASE,
)
#: A setting of the request, as the field in front of a vendor's message: "temperature: must be at
#: most 1".
_REFUSED_SETTING = re.compile(
    r"^\W*(?:max_\w*tokens|temperature|top_[pk]|thinking|reasoning|tool_choice|stop\w*|stream\w*"
    r"|service_tier|response_format|output_config|seed)\b"
    # Gemini puts no field in front.
    r"|works in thinking mode|thinking (?:budget|level)",
    re.IGNORECASE,
)
#: Numbers of tokens, such as 8,192 or 131072. Numbers in the name of a model do not match.
_TOKENS = re.compile(r"(?<![\w.-])\d{1,3}(?:,\d{3})+(?![\w-])|(?<![\w.-])\d{3,9}(?![\w-])")
#: A number of tokens behind words that call it the limit.
_NAMED_LIMIT = re.compile(
    r"(?:maximum\D{0,30}"  # "maximum context length is 8192 tokens"
    r"|context (?:size|length|window)\D{0,20}"  # "the available context size (4096 tokens)"
    r"|\blimit(?::| of)? "  # "limit: 8192", "limit of 8192", "limit 8192"
    r"|\bmodel with "  # "a model with 8192 maximum context length"
    r"|[<>]=? ?"  # "9500 tokens > 8192 maximum", "must be <= 8192"
    r")(\d[\d,]*)",
    re.IGNORECASE,
)
#: A request that was too long is shortened to this share of the limit. It is not filled, because
#: Sayso only estimates how many tokens a text has.
LIMIT_SHARE = 0.9


def says_too_long(text: str) -> bool:
    """Return whether a vendor's error message says that the request is too long for the model."""
    return _TOO_LONG.search(text) is not None


def says_no_credit(text: str) -> bool:
    """Return whether an error's message or code says that credit, quota or budget is used up."""
    return _NO_CREDIT.search(text) is not None


def says_daily_limit(text: str) -> bool:
    """Return whether a vendor's rate limit is one of a whole day."""
    return _DAILY_LIMIT.search(text) is not None


def says_filtered(text: str) -> bool:
    """Return whether an error's message or code says that a content filter stopped the request."""
    return _FILTERED.search(text) is not None


def says_broken_answer(text: str) -> bool:
    """Return whether the server refuses what the model wrote, such as a malformed call.

    A retry may succeed.
    """
    return _BROKEN_ANSWER.search(text) is not None


def access_fault(text: str) -> AccessFault | None:
    """Return what the operator has to mend, by the text of a refused request.

    The text is the vendor's message, or the field of the request that it names. Return None for a
    text about anything else.
    """
    # Several may match one text, and the first one counts. The setting is last, because its first
    # word alone matches: "reasoning model not found" is about the model.
    if _WRONG_REGION.search(text):
        return "region"
    if _WRONG_KEY.search(text):
        return "key"
    if _UNKNOWN_MODEL.search(text):
        return "model"
    if _REFUSED_TOOLS.search(text):
        return "tools"
    if _REFUSED_SETTING.search(text):
        return "setting"
    return None


def fitting_share(text: str) -> float | None:
    """Return which share (0 to 1) of a too long request the model would take.

    The vendor's message may be "maximum context length is 8192 tokens. However, you requested 9500
    tokens (8500 in the messages, 1000 in the completion)". The limit is the number that the words
    name, and the largest number is the request. Return None where the message does not name both:
    without the vendor's own count of the request, a limit in tokens gives no share, since Sayso's
    estimate may count fewer tokens than the limit.
    """
    named = _NAMED_LIMIT.search(text)
    if named is None:
        return None
    limit = _number(named[1])
    requested = max(map(_number, _TOKENS.findall(text)), default=0)
    if not 0 < limit < requested:
        return None
    return limit / requested * LIMIT_SHARE


def _number(digits: str) -> int:
    """Return a number that may be written with commas, such as 131,072."""
    return int(digits.replace(",", ""))
