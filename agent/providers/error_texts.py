"""Read what only the text of a vendor's error says: the request is too long, the account has no money."""

from __future__ import annotations

import re

#: How vendors and servers say that a request is longer than the model's context window.
_TOO_LONG = re.compile(
    r"context.?length|context.?window|maximum context|context.?size|(?:prompt|input) is too long|too many tokens:"
    r"|maximum (?:prompt|model|input) length|range of input length|more than max tokens allowed"
    r"|exceed\w* (?:the )?(?:maximum number of tokens|maximum length|context limit|configured limit of \d+ tokens)"
    r"|reduce the length of the (?:messages|prompt)|tokens must be reduced|string too long"
    r"|\binputs`? (?:tokens\b.{0,40} must be <=|must have less than \d+ tokens)",
    re.IGNORECASE,
)
#: How vendors, and gateways between, say that an account has no money or that its budget is spent.
#: They send it with the statuses of other faults: 400, 403 and 429. Gemini's "You exceeded your
#: current quota, please check your plan and billing details" is left out: it stands for limits of
#: one minute too.
_NO_CREDIT = re.compile(
    r"credit balance|balance is (?:too low|insufficient|not enough)"
    r"|insufficient[_ ](?:account[_ ])?(?:user[_ ])?(?:balance|credit|fund|quota)"
    r"|not enough (?:credit|balance|fund)|(?:out of|no|more|used all available|exhausted\b.{0,40}) credits"
    r"|credits? (?:limit exceeded|(?:(?:is|are|have been) )?(?:depleted|exhausted|used up))"
    r"|exceeded your .{0,40}\bcredits|\bkey limit exceeded"
    r"|budget (?:has been |was )?exceeded|exceeded[_ ]?budget|budget_exceeded|over budget|crossed budget"
    r"|arrearage|overdue.payment|payment (?:is )?(?:required|overdue)"
    r"|(?:billing|spend(?:ing)?|usage)[_ ](?:hard[_ ])?limit|billing_not_active|check your billing details"
    r"|exceeded_current_quota|account (?:is |has been )?(?:suspended|disabled|not active|deactivated)"
    r"|organization has been (?:disabled|suspended)|enable billing",
    re.IGNORECASE,
)
#: Numbers of tokens, such as 8,192 or 131072. Numbers in the name of a model do not match.
_TOKENS = re.compile(r"(?<![\w.-])\d{1,3}(?:,\d{3})+(?![\w-])|(?<![\w.-])\d{3,9}(?![\w-])")
#: The number of tokens that the words around it call the limit.
_NAMED_LIMIT = re.compile(
    r"(?:maximum\D{0,30}|context (?:size|length|window)\D{0,20}|\blimit(?::| of)? |\bmodel with |[<>]=? ?)(\d[\d,]*)",
    re.IGNORECASE,
)
#: The share of the named limit that is used, since tokens are only estimated here.
LIMIT_SHARE = 0.9


def says_too_long(text: str) -> bool:
    """Return whether a vendor's error message says that the request is too long for the model."""
    return _TOO_LONG.search(text) is not None


def says_no_credit(text: str) -> bool:
    """Return whether a vendor's error message or code says that the account's credit, quota or budget is used up."""
    return _NO_CREDIT.search(text) is not None


def fitting_share(text: str) -> float | None:
    """Return the share of a request that the model would take, by a message that it is too long.

    Such a message is "maximum context length is 8192 tokens. However, you requested 9500 tokens
    (8500 in the messages, 1000 in the completion)". The limit is the number that the words name,
    and the largest number is the request. Returns None where the message does not name both.
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
