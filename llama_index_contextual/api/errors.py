"""Errors of the API, in the form that OpenAI's API uses and its clients understand."""

from __future__ import annotations

import math
from typing import Any

from starlette.responses import JSONResponse

from llama_index_contextual.errors import (
    BudgetExceededError,
    ContextualError,
    InputError,
    ModelError,
    NoSpaceError,
    NoVersionError,
    OpenFilesError,
    ProjectLockedError,
    ProjectNotFoundError,
)
from llama_index_contextual.ui.users import RefusedError
from llama_index_contextual.ui.views import without_signs

_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}

_STATUS: tuple[tuple[type[ContextualError], int, str], ...] = (
    (NoVersionError, 400, "no_documents"),
    (ProjectNotFoundError, 404, "model_not_found"),
    (ProjectLockedError, 503, "busy"),
    (NoSpaceError, 507, "disk_full"),
    (OpenFilesError, 503, "busy"),
    (BudgetExceededError, 429, "insufficient_quota"),
    (ModelError, 503, "model_unavailable"),
    (InputError, 400, "invalid_request"),
)
"""Status and code of the errors of this package; the first matching row counts."""


class ApiError(RefusedError):
    """A request that the API refuses.

    Attributes:
        param: Name of the field that is wrong, or None.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(status, message, code=code, retry_after=retry_after)
        self.param = param


def as_api_error(error: ContextualError) -> ApiError:
    """Return an error of this package as an error of the API."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RefusedError):
        return ApiError(error.status, without_signs(error), code=error.code, retry_after=error.retry_after)
    status, code = next(((status, code) for kind, status, code in _STATUS if isinstance(error, kind)), (500, "failed"))
    message = without_signs(error)
    if isinstance(error, NoVersionError):
        message = f"Project {error.name!r} has no documents yet: add some first." if error.name else message
    return ApiError(status, message, code=code, retry_after=5.0 if status == 503 else None)


def error_body(error: ApiError) -> dict[str, Any]:
    """Return an error in OpenAI's form."""
    default = "server_error" if error.status >= 500 else "invalid_request_error"
    kind = _TYPES.get(error.status, default)
    return {"error": {"message": str(error), "type": kind, "param": error.param, "code": error.code}}


def error_response(error: ApiError) -> JSONResponse:
    """Return the response for an error."""
    headers = {} if error.retry_after is None else {"Retry-After": str(max(1, math.ceil(error.retry_after)))}
    return JSONResponse(error_body(error), error.status, headers)
