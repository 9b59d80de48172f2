"""What a ledger refuses. No message holds a record's key, an address or a password."""


class LedgerUnavailable(Exception):
    """The ledger cannot promise that a charge is kept, so nothing may be released. `reason` is a few fixed words."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"Expected a ledger that answers, got none: {reason}.")
        self.reason = reason


class IdempotencyConflict(ValueError):
    """A request's idempotency key came again with another model, client or other records."""

    def __init__(self) -> None:
        super().__init__("Expected an idempotency key with the request it came with first, got it with another one.")


class BudgetExceeded(Exception):
    """A record's budget does not bear another release. The ledger never raises it; who refuses does."""

    def __init__(self, requested: int, remaining: int, record: str) -> None:
        super().__init__(
            f"Expected at most {remaining} more units for record {record}…, got a request for {requested}."
        )
        self.requested, self.remaining, self.record = requested, remaining, record
