"""What a client is told when it does not get an answer. Messages never quote a score, an input or a key."""


class Refusal(Exception):
    """An answer that is none: a status, a message, and headers such as Retry-After."""

    def __init__(self, status: int, message: str, reason: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.reason = reason  # one word for metrics and logs
        self.headers = headers or {}


def bad_request(message: str) -> Refusal:
    return Refusal(400, message, "malformed")


def not_allowed(message: str) -> Refusal:
    """Something that is not on the allow-list."""
    return Refusal(400, message, "not_allowed")


def not_found() -> Refusal:
    return Refusal(404, "Expected a path that this gateway serves, got another.", "not_found")


def upstream_failed(reason: str = "upstream") -> Refusal:
    """Whatever the model behind said stays here."""
    return Refusal(502, "Expected an answer from the model, got none that can be passed on.", reason)
