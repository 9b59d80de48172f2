"""The ledger, opened when it can be: a gateway whose ledger is down starts, answers 503 and waits for it."""

import asyncio

from scoreveil.gateway import logs
from scoreveil.ledger import Ledger, LedgerUnavailable, open_ledger


class LedgerLink:
    """A ledger at an address, and the attempt to reach it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._ledger: Ledger | None = None
        self._opening = asyncio.Lock()

    async def ready(self) -> bool:
        try:
            return await (await self.opened()).ready()
        except (LedgerUnavailable, OSError):
            return False

    async def close(self) -> None:
        if self._ledger is not None:
            await self._ledger.close()

    async def opened(self) -> Ledger:
        """The ledger, or LedgerUnavailable; the next call tries again."""
        if self._ledger is None:
            async with self._opening:
                if self._ledger is None:
                    try:
                        self._ledger = await open_ledger(self._url)
                    except (OSError, ValueError, ModuleNotFoundError) as error:
                        logs.failure("ledger_not_opened", error)
                        raise LedgerUnavailable("it cannot be opened") from None
        return self._ledger
