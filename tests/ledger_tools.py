"""What the ledger's tests share."""

import asyncio
import hashlib
from contextlib import asynccontextmanager

from scoreveil.ledger import LedgerUnavailable, open_ledger


def key(n):
    return hashlib.sha256(str(n).encode()).digest()


@asynccontextmanager
async def opened(url, **options):
    ledger = await open_ledger(url, **options)
    try:
        yield ledger
    finally:
        await ledger.close()


def with_ledger(url, work, **options):
    """`await work(ledger)`, in a loop of its own."""

    async def run():
        async with opened(url, **options) as ledger:
            return await work(ledger)

    return asyncio.run(run())


async def releases(ledger, *keys, model="m"):
    """How many there were of each, without asking for another."""
    return [grant.number for grant in await ledger.charge(model, keys, limit=0)]


async def reason(ledger, **options):
    """Why it is unavailable; None where it takes a charge."""
    caught = None
    try:
        await ledger.charge("m", [key(1)], **{"limit": 1_000_000} | options)
    except LedgerUnavailable as error:
        caught = error
    if caught is None:
        return None
    assert caught.__context__ is None or caught.__suppress_context__  # which may quote what is stored
    return caught.reason
