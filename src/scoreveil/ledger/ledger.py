"""What every ledger is to those who charge it."""

import operator
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from scoreveil.ledger.books import Books
from scoreveil.ledger.charges import Charge, Grant, joined_keys
from scoreveil.ledger.releases import Answered, Questions


class Ledger(ABC):
    """An open ledger, for the event loop and the process that opened it."""

    async def charge(
        self,
        model: str,
        keys: Sequence[bytes],
        limit: int,
        units: int = 1,
        client: str = "",
        request: bytes | None = None,
    ) -> list[Grant]:
        """Charge a release of each record, row by row, while its budget lasts.

        What is granted is on disk when this returns. No record's granted units ever add up to more than the largest
        limit given, and no `number` is granted twice.

        Args:
            model: The name under which the records are counted.
            keys: A `record_key` for each row.
            limit: The budget of one record, in units.
            units: What one release costs.
            client: Who asks; for the books alone.
            request: The hash of an idempotency key. The same call then gives the same grants and is charged once, for
                as long as the ledger keeps requests.

        Returns:
            A grant for each row; one that is not granted was not charged.

        Raises:
            LedgerUnavailable: Release nothing; it may have been charged all the same.
            IdempotencyConflict: The request came before with other records, client or model.
            ValueError: A name, number or key is out of its range.
        """
        units, limit = operator.index(units), operator.index(limit)
        return await self.grant(Charge(model, joined_keys(keys), limit, units, client, request))

    @abstractmethod
    async def answer(self, asked: Questions) -> list[Answered]:
        """Answer questions by neighbourhood (`releases.py`); what is granted is on disk when this returns.

        Raises:
            LedgerUnavailable, IdempotencyConflict: As `charge`.
        """

    @abstractmethod
    async def bind(self, facts: Mapping[str, str]) -> dict[str, str]:
        """Write down facts that must never change, such as which secret belongs here; what is there already stays.

        Returns:
            All the facts that the ledger holds now.
        """

    @abstractmethod
    async def convert(self, model: str, unit: str, price: int) -> str:
        """Say in which unit a model's records are counted. A ledger from before there were units counted releases:
        these become `price` units each, in counters and journal alike, once.

        Returns:
            The unit that holds: this one, or the one that was set before.
        """

    @abstractmethod
    async def grant(self, charge: Charge) -> list[Grant]:
        """Take a charge that was checked."""

    @abstractmethod
    async def ready(self) -> bool:
        """Whether a charge would be taken now."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of it. Another worker takes over the writing, where there is one."""

    @property
    @abstractmethod
    def books(self) -> Books:
        """Who spent what, verify, forget."""
