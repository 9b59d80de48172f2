"""What a ledger refuses. No message holds a record's key, an address or a password."""


class LedgerUnavailable(Exception):
    """The ledger cannot promise that a charge is kept, so nothing may be released. `reason` is a few fixed words."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"The ledger is unavailable: {reason}.")
        self.reason = reason


class NoLedger(LedgerUnavailable):
    """At its address there is none yet."""


class IdempotencyConflict(ValueError):
    """A request's idempotency key came again with another model, client, settings or other records."""

    def __init__(self) -> None:
        super().__init__("This idempotency key came with another request before; use a new one.")
