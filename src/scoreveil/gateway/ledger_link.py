"""The ledger, opened when it can be: a gateway whose ledger is down starts, answers 503 and waits for it."""

import asyncio
from collections.abc import Sequence

from scoreveil.gateway import logs
from scoreveil.ledger import Grant, Ledger, LedgerUnavailable, open_ledger


class LedgerLink:
    """A ledger at an address, and the attempt to reach it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._ledger: Ledger | None = None
        self._opening = asyncio.Lock()

    async def charge(
        self, model: str, keys: Sequence[bytes], limit: int, client: str, request: bytes | None
    ) -> list[Grant]:
        """As `Ledger.charge`; LedgerUnavailable whatever goes wrong, since nothing may be released then."""
        ledger = await self._opened()
        return await ledger.charge(model, keys, limit, client=client, request=request)

    async def ready(self) -> bool:
        try:
            ledger = await self._opened()
            return await ledger.ready()
        except (LedgerUnavailable, OSError):
            return False

    async def close(self) -> None:
        if self._ledger is not None:
            await self._ledger.close()

    async def _opened(self) -> Ledger:
        if self._ledger is None:
            async with self._opening:
                if self._ledger is None:
                    try:
                        self._ledger = await open_ledger(self._url)
                    except (OSError, ValueError, ModuleNotFoundError) as error:
                        logs.failure("ledger_not_opened", error)
                        raise LedgerUnavailable("it cannot be opened") from None
        return self._ledger
