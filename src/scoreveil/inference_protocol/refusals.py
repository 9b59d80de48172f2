"""What a client is told when it does not get an answer. Messages never quote a score, an input or a key."""


class Refusal(Exception):
    """The server declines to answer: an HTTP status, a message, one word for metrics and logs, and further headers."""

    def __init__(self, status: int, message: str, reason: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.reason, self.headers = status, message, reason, headers or {}


def bad_request(message: str) -> Refusal:
    """The request cannot be read, or contradicts itself."""
    return Refusal(400, message, "malformed")


def not_allowed(message: str) -> Refusal:
    """The request asks for something that is not on the allow-list."""
    return Refusal(400, message, "not_allowed")


def too_many_rows(rows: int, most: int) -> Refusal:
    return Refusal(413, f"The request has {rows} rows; send at most {most} at a time.", "rows")


def not_found() -> Refusal:
    return Refusal(404, "This path is not served; /v2/models/NAME/infer and its relatives are.", "not_found")


def upstream_failed(reason: str = "upstream") -> Refusal:
    """The model's answer cannot be passed on; whatever it said stays here."""
    return Refusal(502, "The model gave no answer that can be passed on; its operator's log says why.", reason)


def model_too_slow() -> Refusal:
    return Refusal(504, "The model did not answer in time; try again later, or ask for less at a time.", "timeout")
