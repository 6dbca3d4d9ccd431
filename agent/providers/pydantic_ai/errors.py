"""Errors: what goes wrong between us and a vendor, as our own, and whether to ask again can help."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from traceback import format_exception
from typing import Any

from pydantic_ai.exceptions import (
    ContentFilterError,
    ModelAPIError,
    ModelConnectionError,
    ModelContextWindowExceededError,
    ModelHTTPError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelRequestRejectedError,
    ModelRequestTimeout,
    UnexpectedModelBehavior,
    UserError,
)

from sayso.agent.providers.base import FILTERED, ProviderError, RateLimitedError, RequestRefusedError, says_too_long

#: Characters of a vendor's own words.
MAX_REASON_CHARS = 200
#: Characters of what a model says when it refuses.
MAX_REFUSAL_CHARS = 2000
#: What a key looks like, also with its middle starred out, and an address that may have one in it.
_SECRETS = re.compile(r"\b(?:sk|pk|rk|gsk|xai)-[\w*.-]{4,}|\bAIza[\w*-]{6,}|\bBearer \S+|\bhttps?://\S+")
#: Statuses below 500 that mean "later", not "never".
_LATER = frozenset({408, 409, 425})
#: Statuses that are about what was asked, whoever asks it.
_REFUSALS = frozenset({400, 413, 422})
#: Statuses with which vendors and servers refuse a request that is too long.
_MAY_BE_TOO_LONG = _REFUSALS | {429, 500}
#: The status of a request that is too large, and those of a vendor that has too much to do.
_TOO_LARGE, _BUSY = 413, frozenset({503, 529})
_SECONDS = re.compile(r"\d{1,9}\.\d{0,9}")
#: How vendors say that they will not talk about something.
_FILTERS = ("content_filter", "content_policy_violation", "content management policy")


@contextmanager
def translated(provider: str, secrets: Sequence[str], settings: Collection[str] = ()) -> Iterator[None]:
    """Raises what the vendor's library raises as ProviderError, without these secrets. A refusal names the operator's
    `settings` that were sent.
    """
    try:
        yield
    except ProviderError:
        raise
    except Exception as exc:  # noqa: BLE001  # raised again, as ours
        translation = _Translation(provider, secrets, settings)
        raise translation.of(exc) from translation.cause(exc)


def filtered(provider: str, refusal: str = "") -> ProviderError:
    """For an answer that the vendor kept to itself, with what the model says instead."""
    error = RequestRefusedError(f"{provider}: its content filter stopped the answer")
    error.code, error.refusal = FILTERED, refusal.strip()[:MAX_REFUSAL_CHARS]
    return error


def unreadable(provider: str) -> ProviderError:
    """Return the error for an answer that its vendor calls broken, such as a malformed call. Asking again can help."""
    return ProviderError(f"{provider}: its answer cannot be read")


def broken_off(provider: str) -> ProviderError:
    """For a stream without an end."""
    error = ProviderError(f"{provider}: the answer broke off")
    error.kind = "cut_off"
    return error


class _Translation:
    def __init__(self, provider: str, secrets: Sequence[str], settings: Collection[str]) -> None:
        self._settings = ", ".join(settings)
        self._provider, self._secrets = provider, [each for each in secrets if len(each) > 4]

    def of(self, exc: Exception) -> ProviderError:
        """Return the error as ours, with the vendor's status, code and model."""
        error = self._translated(exc)
        if isinstance(exc, ModelAPIError):
            error.model = exc.model_name
            error.code = self._clean(exc.provider_error_code or exc.provider_error_type or "")
            error.status = exc.status_code if isinstance(exc, ModelHTTPError) else None
            if _is_too_long(exc, error.status):
                error.kind = "too_long"
            elif error.status in _BUSY:
                error.kind = "busy"
            elif _says_filtered(exc):
                error.code = FILTERED
        return error

    def _translated(self, exc: Exception) -> ProviderError:
        match exc:
            case ModelRequestTimeout():
                return self._error(f"no answer within {exc.timeout:g} seconds", retryable=True)
            case TimeoutError():
                return self._error("no answer in time", retryable=True)
            case ModelAPIError():
                return self._api_error(exc)
            case ContentFilterError():
                return filtered(self._provider)
            case UnexpectedModelBehavior():
                return self._error("its answer cannot be read", retryable=True)
            case UserError() | NotImplementedError() | AssertionError():
                return self._refused(f"it cannot be asked this: {self._clean(str(exc))}")
        return self._error(f"the answer broke off ({type(exc).__name__})", retryable=True)

    def cause(self, exc: Exception) -> Exception | None:
        """What the error comes from; nothing where a traceback would show a key."""
        told = "".join(format_exception(exc))
        return None if self._hidden(told) != told else exc

    def _api_error(self, exc: ModelAPIError) -> ProviderError:
        reason, status = self._reason(exc), exc.status_code if isinstance(exc, ModelHTTPError) else None
        wait = _wait(exc)
        if _is_too_long(exc, status):
            return self._refused(f"the conversation is too long for {exc.model_name!r}{reason}")
        if status == 429 or isinstance(exc, ModelRateLimitError):
            return self._limited(exc, reason, wait)
        if _says_filtered(exc):
            return self._refused(f"its content filter refused the request{reason}")
        if isinstance(exc, ModelConnectionError):
            return self._error(f"the connection was lost ({_cause(exc)})", retryable=True)
        said = "it failed" if status is None else f"it answered {status}"
        if status in _REFUSALS:
            sent = f" (model_settings sent: {self._settings})" if self._settings else ""
            error = self._refused(f"{said}{reason}{sent}")
            error.settings = self._settings
            return error
        return self._error(f"{said}{reason}", retryable=_is_worth_another(exc, status), retry_after=wait)

    def _limited(self, exc: ModelAPIError, reason: str, wait: float | None) -> ProviderError:
        spent = isinstance(exc, ModelQuotaExceededError)
        what = "its quota is used up (429)" if spent else "rate limit (429)"
        return RateLimitedError(f"{self._provider}: {what}{reason}", retry_after=wait, retryable=not spent)

    def _refused(self, what: str) -> ProviderError:
        return RequestRefusedError(f"{self._provider}: {what}")

    def _error(self, what: str, *, retryable: bool, retry_after: float | None = None) -> ProviderError:
        return ProviderError(f"{self._provider}: {what}", retryable=retryable, retry_after=retry_after)

    def _reason(self, exc: ModelAPIError) -> str:
        """The vendor's words; never the exception's own, which repeat the whole body."""
        words = _message(exc.body)
        return f": {self._clean(words)}" if words else ""

    def _clean(self, words: str) -> str:
        line = " ".join(_SECRETS.sub("[hidden]", self._hidden(words)).split())
        return line if len(line) <= MAX_REASON_CHARS else line[:MAX_REASON_CHARS] + "..."

    def _hidden(self, words: str) -> str:
        for secret in self._secrets:
            words = words.replace(secret, "[hidden]")
        return words


def _message(body: object) -> str:
    """The message in the shapes that vendors give it; a page of HTML says nothing."""
    if isinstance(body, list):
        return _message(body[0]) if body else ""
    if isinstance(body, dict):
        inner: Any = body.get("error", body)
        said = inner.get("message") if isinstance(inner, dict) else inner
        return said if isinstance(said, str) else ""
    return body if isinstance(body, str) and not body.lstrip().startswith("<") else ""


def _wait(exc: ModelAPIError) -> float | None:
    """Seconds that the vendor asks us to wait. Some give a fraction, which neither HTTP nor the library knows."""
    given = exc.retry_after
    said = (exc.headers or {}).get("retry-after", "") if isinstance(exc, ModelHTTPError) else ""
    if given is None and _SECONDS.fullmatch(said):
        given = float(said)
    return None if given is None else max(0.0, given)


def _is_worth_another(exc: ModelAPIError, status: int | None) -> bool:
    if status is not None:
        return status >= 500 or status in _LATER
    return not isinstance(exc, ModelRequestRejectedError | ModelQuotaExceededError)


def _is_too_long(exc: ModelAPIError, status: int | None) -> bool:
    """Return whether the request is longer than the model reads, or than its vendor takes in a minute: waiting does not
    help then. Servers of one's own say it in words of their own, some with status 500.
    """
    if isinstance(exc, ModelContextWindowExceededError) or status == _TOO_LARGE:
        return True
    return status in _MAY_BE_TOO_LONG and says_too_long(_message(exc.body))


def _says_filtered(exc: ModelAPIError) -> bool:
    said = json.dumps([exc.provider_error_code, exc.provider_error_type, _message(exc.body)])
    return any(word in said for word in _FILTERS)


def _cause(exc: BaseException) -> str:
    return type(exc.__cause__ or exc).__name__
