"""What a client is told when it does not get an answer. Messages never quote a score, an input or a key."""

# what the operator's log says of a model's answer, by the reason, where no more is known
KINDS = {
    "not_scores": "the answer is not made of score vectors as they are configured",
    "releases": "the answer holds another number of releases than an earlier one, or more than the ledger keeps",
    "rows": "the answer has another number of rows than the request",
}


class ApiError(Exception):
    """The server declines to answer.

    Attributes:
        status: The HTTP status.
        message: What the client is told.
        reason: One word for metrics and logs.
        headers: Further headers of the answer.
        detail: What the operator's log says beside it; nothing of a body.
    """

    def __init__(
        self, status: int, message: str, reason: str, headers: dict[str, str] | None = None, detail: str = ""
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.reason, self.headers = status, message, reason, headers or {}
        self.detail = detail


def bad_request(message: str) -> ApiError:
    """The request cannot be read, or contradicts itself."""
    return ApiError(400, message, "malformed")


def not_allowed(message: str) -> ApiError:
    """The request asks for something that is not on the allow-list."""
    return ApiError(400, message, "not_allowed")


def too_many_rows(rows: int, most: int) -> ApiError:
    return ApiError(413, f"The request has {rows} rows; send at most {most} at a time.", "rows")


def not_found() -> ApiError:
    return ApiError(404, "This path is not served; /v2/models/NAME/infer and its relatives are.", "not_found")


def upstream_failed(reason: str = "upstream", detail: str = "") -> ApiError:
    """The model's answer cannot be passed on; whatever it said stays here."""
    message = "The model gave no answer that can be passed on; its operator's log says why."
    return ApiError(502, message, reason, detail=detail or KINDS.get(reason, ""))


def model_too_slow(detail: str = "") -> ApiError:
    message = "The model did not answer in time; try again later, or ask for less at a time."
    return ApiError(504, message, "timeout", detail=detail)
