"""Translates the errors that pydantic-ai raises into ProviderErrors, which say whether to retry.

The text of a ProviderError has no secrets. `_Translation._api_error` has the table of all cases.
The functions below it answer its questions by the status, the code and the message of an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from traceback import format_exception
from typing import Any

from pydantic_ai.exceptions import (
    ContentFilterError,
    ModelAPIError,
    ModelAuthenticationError,
    ModelConnectionError,
    ModelContextWindowExceededError,
    ModelHTTPError,
    ModelNotFoundError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelRequestRejectedError,
    ModelRequestTimeout,
    UnexpectedModelBehavior,
    UserError,
)

from sayso.agent.providers.base import (
    FILTERED,
    ProviderError,
    RateLimitedError,
    RequestRefusedError,
)
from sayso.agent.providers.vendor_error_texts import (
    AccessFault,
    access_fault,
    fitting_share,
    says_broken_answer,
    says_daily_limit,
    says_filtered,
    says_no_credit,
    says_too_long,
)

#: How many characters of a vendor's error message are kept.
MAX_REASON_CHARS = 200
#: How many faulty fields of a request an error names.
MAX_FIELD_ERRORS = 3
#: How many characters of a model's refusal are kept.
MAX_REFUSAL_CHARS = 2000
#: API keys, also with starred-out characters, and URLs, which may contain one.
_SECRETS = re.compile(
    r"\b(?:sk|pk|rk|gsk|xai)-[\w*.-]{4,}|\bAIza[\w*-]{6,}|\bBearer \S+|\bhttps?://\S+"
)
#: Statuses of client errors that are worth a retry: timeout, conflict, too early.
_RETRYABLE = frozenset({408, 409, 425})
#: Statuses for a request whose content is refused, which other vendors would refuse as well.
_REFUSALS = frozenset({400, 413, 422})
#: Statuses that stay until the operator acts: a wrong key, an account without credit, a key without
#: rights, an unknown model.
_NO_ACCESS = frozenset({401, 402, 403, 404})
#: Statuses with which vendors and gateways say that an account has no credit.
_MAYBE_NO_CREDIT = frozenset({400, 402, 403, 412, 422, 429})
#: Codes with which OpenAI refuses a field of the request that the operator has set, or that its
#: model does not know.
_SETUP_CODES = frozenset({"unsupported_parameter", "unsupported_value", "unknown_parameter"})
#: Statuses with which vendors and servers refuse what the operator has set. None is an error inside
#: of a stream. llama.cpp answers 500.
_MAYBE_SETUP = frozenset({None, 400, 422, 500})
#: Those of `_MAYBE_SETUP` that mostly pass by themselves: a failing server, and an error inside of
#: a stream.
_MOSTLY_PASSING = frozenset({None, 500})
#: The longest waiting time of a rate limit, in seconds. A longer one is a used-up quota.
MAX_RATE_LIMIT_SECONDS = 3600
#: The status of a request that is too large.
_TOO_LARGE = 413
#: Statuses with which vendors and servers refuse a request that is too long. None is an error
#: inside of a stream.
_MAYBE_TOO_LONG = _REFUSALS | {None, 429, 500}
#: Statuses of an overloaded vendor; Anthropic answers 529, Groq 498.
_OVERLOADED = frozenset({498, 503, 529})
#: A `retry-after` header with a fraction of a second.
_FRACTIONAL_SECONDS = re.compile(r"\d{1,9}\.\d{0,9}")


@contextmanager
def translated(provider: str, api_key: str, settings: Collection[str] = ()) -> Iterator[None]:
    """Raise every error of the block as a ProviderError, whose text does not have the API key.

    `provider` is the vendor's name. `settings` are the names of the operator's model settings that
    were sent: the error of a refused request names them, since one of them may be the cause.
    """
    try:
        yield
    except ProviderError:
        raise
    except Exception as exc:
        translation = _Translation(provider, api_key, settings)
        raise translation.error(exc) from translation.cause(exc)


def content_filtered(provider: str, refusal: str = "") -> ProviderError:
    """Return the error for an answer that the vendor's content filter stopped.

    `refusal` is the model's own text about it, "" for none.
    """
    error = RequestRefusedError(f"{provider}: its content filter stopped the answer")
    error.code = FILTERED
    error.refusal = refusal.strip()[:MAX_REFUSAL_CHARS]
    return error


def unreadable_answer(provider: str) -> ProviderError:
    """Return the error for an answer that its vendor calls broken. A retry may succeed."""
    return ProviderError(f"{provider}: its answer cannot be read")


def call_in_text(provider: str) -> ProviderError:
    """Return the error for a tool call that a server left in the text of the answer.

    A retry may succeed, since the model may write the call in another way.
    """
    cure = "its server needs a parser for the model's calls"
    error = ProviderError(f"{provider}: it wrote a tool call as text: {cure}")
    error.code = "call_in_text"
    return error


def cut_off_stream(provider: str) -> ProviderError:
    """Return the error for a stream that ends without a finish reason."""
    error = ProviderError(f"{provider}: the answer broke off")
    error.kind = "cut_off"
    return error


class _Translation:
    """Translates one error of pydantic-ai or of a vendor's library."""

    def __init__(self, provider: str, api_key: str, settings: Collection[str]) -> None:
        self._provider = provider
        self._settings = ", ".join(settings)
        # A shorter key is not hidden: that would hide ordinary text.
        self._api_key = api_key if len(api_key) > 4 else ""

    def error(self, exc: Exception) -> ProviderError:
        """Return the error as a ProviderError, with the vendor's status, code and model."""
        match exc:
            case ModelRequestTimeout():
                error = self._error(f"no answer within {exc.timeout:g} seconds", retryable=True)
            case TimeoutError():
                return self._error("no answer in time", retryable=True)
            case ModelAPIError():
                error = self._api_error(exc)
            case ContentFilterError():
                return content_filtered(self._provider)
            case UnexpectedModelBehavior():
                return unreadable_answer(self._provider)
            case UserError() | NotImplementedError() | AssertionError():
                return self._refused(f"it cannot be asked this: {self._cleaned(str(exc))}")
            case _:
                return self._error(f"the answer broke off ({type(exc).__name__})", retryable=True)

        error.model = exc.model_name
        error.code = self._cleaned(exc.provider_error_code or exc.provider_error_type or "")
        error.status = _status_of(exc)
        _set_kind(error, exc)
        return error

    def cause(self, exc: Exception) -> Exception | None:
        """Return the error as the cause of its translation, None if its traceback has the key."""
        text = "".join(format_exception(exc))
        if self._without_key(text) != text:
            return None
        return exc

    def _api_error(self, exc: ModelAPIError) -> ProviderError:
        """Return an error of the vendor's API. The first row of the table that fits decides.

        | the vendor says                           | is it worth a retry?                         |
        |-------------------------------------------|----------------------------------------------|
        | the request is too long                   | no                                           |
        | the model wrote what cannot be read       | yes                                          |
        | too many requests                         | yes, unless a quota is used up               |
        | its content filter refused the request    | no                                           |
        | no access: key, credit, model, setting    | no                                           |
        | nothing: the connection was lost          | yes                                          |
        | it refuses the content of the request     | no                                           |
        | anything else                             | if a status says so, such as 5xx             |
        """
        status = _status_of(exc)
        # Only the vendor's own message: the exception's text repeats the whole body.
        message = _message(exc.body)
        reason = ""
        if message:
            reason = f": {self._cleaned(message)}"

        if _is_too_long(exc, status):
            return self._refused(f"the conversation is too long for {exc.model_name!r}{reason}")

        if _is_broken_answer(exc):
            return self._error(f"its answer cannot be read{reason}", retryable=True)

        if status == 429 or isinstance(exc, ModelRateLimitError):
            is_used_up = _has_no_credit(exc, status)
            limit = "rate limit (429)"
            if is_used_up:
                limit = "its quota is used up (429)"
            text = f"{self._provider}: {limit}{reason}"
            return RateLimitedError(text, retry_after=_retry_after(exc), retryable=not is_used_up)

        if _is_filtered(exc):
            return self._refused(f"its content filter refused the request{reason}")

        if _access_fault(exc, status):
            failure = "no access" if status is None else f"it answered {status}"
            error = self._error(f"{failure}{reason}{self._sent_settings()}", retryable=False)
            if status in _REFUSALS:
                error.settings = self._settings
            return error

        if isinstance(exc, ModelConnectionError):
            cause = type(exc.__cause__ or exc).__name__
            return self._error(f"the connection was lost ({cause})", retryable=True)

        failure = "it failed" if status is None else f"it answered {status}"
        if status in _REFUSALS:
            error = self._refused(f"{failure}{reason}{self._sent_settings()}")
            error.settings = self._settings
            return error

        return self._error(
            f"{failure}{reason}",
            retryable=_is_retryable(exc, status),
            retry_after=_retry_after(exc),
        )

    def _sent_settings(self) -> str:
        """Return the model settings of the request for an error text, "" if there are none."""
        if not self._settings:
            return ""
        return f" (model_settings sent: {self._settings})"

    def _refused(self, reason: str) -> ProviderError:
        """Return the error for a request that the vendor refused."""
        return RequestRefusedError(f"{self._provider}: {reason}")

    def _error(
        self, reason: str, *, retryable: bool, retry_after: float | None = None
    ) -> ProviderError:
        """Return an error with the vendor's name in its text."""
        return ProviderError(
            f"{self._provider}: {reason}", retryable=retryable, retry_after=retry_after
        )

    def _cleaned(self, text: str) -> str:
        """Return the beginning of a text on one line, with its secrets hidden."""
        without_secrets = _SECRETS.sub("[hidden]", self._without_key(text))
        line = " ".join(without_secrets.split())
        if len(line) <= MAX_REASON_CHARS:
            return line
        return line[:MAX_REASON_CHARS] + "..."

    def _without_key(self, text: str) -> str:
        """Return the text with the API key of the request hidden."""
        if self._api_key:
            return text.replace(self._api_key, "[hidden]")
        return text


def _status_of(exc: ModelAPIError) -> int | None:
    """Return the HTTP status of an error; None for an error without one, such as in a stream."""
    if isinstance(exc, ModelHTTPError):
        return exc.status_code
    return None


def _is_retryable(exc: ModelAPIError, status: int | None) -> bool:
    """Return whether the same request may succeed later, by the status or the kind of an error."""
    if status is None:
        return not isinstance(exc, ModelRequestRejectedError | ModelQuotaExceededError)
    return status >= 500 or status in _RETRYABLE or status in _OVERLOADED


def _message(body: object) -> str:
    """Return the message of an error body in any vendor's format; "" for a page of HTML."""
    if isinstance(body, list) and body:
        return _message(body[0])
    if isinstance(body, dict):
        return _message_of_object(body)
    if isinstance(body, str) and not body.lstrip().startswith("<"):
        return body
    return ""


def _message_of_object(body: dict[str, Any]) -> str:
    """Return the message of an error body that is a JSON object."""
    error: Any = body.get("error", body.get("detail", body))
    if isinstance(error, list):
        field_errors = map(_field_error, error[:MAX_FIELD_ERRORS])
        return "; ".join(filter(None, field_errors))

    message: Any = error
    if isinstance(error, dict):
        message = error.get("message")
    if not isinstance(message, str):
        message = ""
    upstream_message = _upstream_message(error)
    if upstream_message:
        return f"{message}: {upstream_message}"
    return str(message)


def _upstream_message(error: object) -> str:
    """Return the message of the vendor that OpenRouter passed the request to; "" for none."""
    if not isinstance(error, dict):
        return ""
    metadata = error.get("metadata")
    if not isinstance(metadata, dict):
        return ""
    raw = metadata.get("raw")
    if not isinstance(raw, str):
        return ""
    try:
        return _message(json.loads(raw))
    except (ValueError, RecursionError):
        return _message(raw)


def _field_error(error: object) -> str:
    """Return the path and the fault of one field of a request, "" for anything else.

    Many servers are made with FastAPI, which reports faulty fields in a list. Their values are left
    out, since a person may have written them.
    """
    if not isinstance(error, dict) or not isinstance(error.get("msg"), str):
        return ""
    path = error.get("loc")
    place = ""
    if isinstance(path, list):
        place = ".".join(map(str, path))
    message = str(error["msg"])
    if place:
        return f"{place}: {message}"
    return message


def _retry_after(exc: ModelAPIError) -> float | None:
    """Return the seconds to wait, None if the vendor names none.

    Some vendors send a fraction of a second, which the library does not read.
    """
    seconds = exc.retry_after
    header = ""
    if isinstance(exc, ModelHTTPError):
        header = (exc.headers or {}).get("retry-after", "")
    if seconds is None and _FRACTIONAL_SECONDS.fullmatch(header):
        seconds = float(header)
    if seconds is None:
        return None
    return max(0.0, seconds)


def _is_too_long(exc: ModelAPIError, status: int | None) -> bool:
    """Return whether a request exceeds the context window, or the limit of tokens per minute.

    Waiting does not help with either: this one request is more than the limit. Self-hosted servers
    say it only in their message, some with status 500.
    """
    if isinstance(exc, ModelContextWindowExceededError) or status == _TOO_LARGE:
        return True
    if _refused_field(exc).startswith("tools"):
        return False
    return status in _MAYBE_TOO_LONG and says_too_long(_message(exc.body))


def _set_kind(error: ProviderError, exc: ModelAPIError) -> None:
    """Set the kind, the code or the access fault of an error, where its class does not say it."""
    if _is_too_long(exc, error.status):
        error.kind = "too_long"
        error.fitting_share = fitting_share(_message(exc.body))
    elif error.status in _OVERLOADED:
        error.kind = "busy"
    elif _is_filtered(exc):
        error.code = FILTERED
    elif not _is_broken_answer(exc):
        fault = _access_fault(exc, error.status)
        if fault:
            error.kind = "no_access"
            error.access_fault = fault


def _access_fault(exc: ModelAPIError, status: int | None) -> AccessFault | None:
    """Return what only the operator can mend, None where there is no such fault."""
    if _has_no_credit(exc, status):
        return "credit"
    named_fault = _named_fault(exc, status)
    if status == 403 and named_fault is None:
        return "rights"
    if status == 401 or (isinstance(exc, ModelAuthenticationError) and named_fault is None):
        return "key"
    if status == 404 or isinstance(exc, ModelNotFoundError):
        return "model"
    return named_fault


def _named_fault(exc: ModelAPIError, status: int | None) -> AccessFault | None:
    """Return what the operator has to mend by the field, the code or the message of an error."""
    if status not in _MAYBE_SETUP | _NO_ACCESS:
        return None
    field = _refused_field(exc)
    if field == "model":
        return "model"
    for text in (field, exc.provider_error_code, _message(exc.body)):
        fault = access_fault(text or "")
        # In an error that mostly passes, "stream error" or "reasoning engine crashed" names no
        # setting.
        if fault == "setting" and status in _MOSTLY_PASSING:
            continue
        if fault is not None:
            return fault

    is_setting = bool(field) and not field.startswith(("messages", "input"))
    if is_setting and exc.provider_error_code in _SETUP_CODES:
        return "setting"
    return None


def _refused_field(exc: ModelAPIError) -> str:
    """Return the field of the request that an error names, "" for none.

    OpenAI and servers with its API name one.
    """
    body: Any = exc.body
    if not isinstance(body, dict):
        return ""
    field = body.get("param")
    return field if isinstance(field, str) else ""


def _has_no_credit(exc: ModelAPIError, status: int | None) -> bool:
    """Return whether the account has no credit, or its quota is used up.

    Anthropic answers that with 400, gateways with 400 or 429. A rate limit that lasts for hours is
    a used-up quota too. An error inside of a stream may have no status.
    """
    if isinstance(exc, ModelQuotaExceededError):
        return True
    if status is not None and status not in _MAYBE_NO_CREDIT:
        return False
    texts = _texts(exc)
    if any(says_no_credit(text) for text in texts):
        return True
    if status != 429:
        return False
    seconds = _retry_after(exc)
    if seconds is None:
        return any(says_daily_limit(text) for text in texts)
    return seconds > MAX_RATE_LIMIT_SECONDS


def _is_filtered(exc: ModelAPIError) -> bool:
    """Return whether the vendor's content filter stopped the request."""
    return any(says_filtered(text) for text in _texts(exc))


def _is_broken_answer(exc: ModelAPIError) -> bool:
    """Return whether the server refuses what the model wrote, and not the request.

    Groq answers 400 for it.
    """
    return any(says_broken_answer(text) for text in _texts(exc))


def _texts(exc: ModelAPIError) -> list[str]:
    """Return the code, the type and the message of a vendor's error, those that it has."""
    texts = (exc.provider_error_code, exc.provider_error_type, _message(exc.body))
    return [text for text in texts if text]
