"""What every ledger is to those who ask it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from scoreveil.ledger.books import Books
from scoreveil.ledger.releases import ReleaseRequest, ReleaseResult


@dataclass(frozen=True)
class Horizon:
    """When records end: the oldest are dropped once there are more than `records`, or after `days`; 0: never by age."""

    records: int = 1_000_000
    days: int = 0

    def __post_init__(self) -> None:
        if not 1_000 <= self.records <= 200_000_000:
            raise ValueError(f"records must be between 1,000 and 200,000,000, got {self.records:,}.")
        if not 0 <= self.days <= 36_500:
            raise ValueError(f"days must be between 0 and 36,500, got {self.days}.")


class Ledger(ABC):
    """An open ledger, for the event loop and the process that opened it."""

    @abstractmethod
    async def answer(self, questions: ReleaseRequest) -> ReleaseResult:
        """Answer questions by the rule of `releases.py`; what is charged is on disk when this returns.

        Raises:
            LedgerUnavailable: Release nothing; it may have been charged all the same.
            IdempotencyConflict: The request came before with other rows, or under other settings.
        """

    @abstractmethod
    async def bind(self, facts: Mapping[str, str]) -> dict[str, str]:
        """Write down facts that must never change, such as which secret belongs here; what is there already stays.

        Returns:
            All the facts that the ledger holds now.
        """

    @abstractmethod
    async def ready(self) -> bool:
        """Whether a question would be answered now."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of it. Another worker takes over the writing, where there is one."""

    @property
    @abstractmethod
    def books(self) -> Books:
        """Who spent what, verify, forget."""
