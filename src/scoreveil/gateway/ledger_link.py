"""The ledger, opened when it can be: a gateway whose ledger is down starts, answers 503 and waits for it.

A ledger belongs to one secret and counts each model in one unit. Under another secret every record would be a new one,
with nothing spent, so a gateway whose secret is missing or another does not start.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path

from scoreveil.gateway import logs, secrets
from scoreveil.gateway.config import SQLITE, LedgerSettings
from scoreveil.gateway.opened import OpenedConfig, OpenedModel
from scoreveil.gateway.secrets import Keys
from scoreveil.ledger import Ledger, LedgerUnavailable, NoLedger, open_books, open_ledger
from scoreveil.ledger.releases import unit_fact

OTHER_SECRET = (
    "The ledger was begun with another secret, so it would know no record again. Put the secret file of its backup "
    "back; or give ledger.url a new place, which forgives all that was spent."
)
NO_SECRET = (
    "There is no secret file {path}, but the ledger holds what was spent under one. Put the file of the backup back; "
    "or give ledger.url a new place, which forgives all that was spent."
)
OTHER_UNIT = (
    "The ledger counts what was spent on model {model} in {held}; its rule now counts in {asked}. Set the rule back, "
    "give the model a new version, or forget it (scoreveil ledger forget --model {model})."
)


class LedgerMismatch(ValueError):
    """The ledger belongs to another secret, or counts otherwise."""


class LedgerLink:
    """A ledger at an address, and the attempt to reach it."""

    def __init__(self, settings: LedgerSettings) -> None:
        self._settings = settings
        self._ledger: Ledger | None = None
        self._opening, self._tries = asyncio.Lock(), 0
        self._required: tuple[Keys, Mapping[str, OpenedModel]] | None = None

    async def require(self, keys: Keys, models: Mapping[str, OpenedModel]) -> None:
        """From now on the ledger must be that of these keys and models.

        Raises:
            LedgerMismatch: It is not; where it cannot be reached, this shows later.
        """
        self._required = keys, models
        try:
            await self._agree(await self.opened())
        except LedgerUnavailable:
            return

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
            tries = self._tries
            async with self._opening:
                if self._ledger is None:
                    if tries != self._tries:  # it failed while we waited: or each would wait for one try more
                        raise LedgerUnavailable("it cannot be opened")
                    try:
                        self._ledger = await self._open()
                    finally:
                        self._tries += 1
        return self._ledger

    async def _open(self) -> Ledger:
        try:
            ledger = await open_ledger(self._settings.url, self._settings.horizon)
        except (OSError, ValueError, ModuleNotFoundError) as error:
            logs.failure("ledger_not_opened", error)
            raise LedgerUnavailable("it cannot be opened") from None
        try:
            await self._agree(ledger)
        except BaseException as error:
            await ledger.close()
            if isinstance(error, LedgerMismatch):
                logs.failure("ledger_mismatch", error, message=str(error))
            raise
        return ledger

    async def _agree(self, ledger: Ledger) -> None:
        if self._required is None:
            return
        keys, models = self._required
        if (await ledger.bind({"secret": keys.fingerprint}))["secret"] != keys.fingerprint:
            raise LedgerMismatch(OTHER_SECRET)
        asked = {name: model.unit for name, model in models.items() if model.memory is not None}
        facts = await ledger.bind({unit_fact(name): unit for name, unit in asked.items()})
        for name, unit in asked.items():
            held = facts[unit_fact(name)]
            if held != unit:
                raise LedgerMismatch(OTHER_UNIT.format(model=name, held=held, asked=unit))


def load_keys(opened: OpenedConfig) -> Keys | None:
    """The keys of a gateway about to start; made where there are neither keys nor a ledger. None if none are needed.

    Raises:
        ValueError: The ledger belongs to other keys, or the keys are missing beside a ledger.
    """
    if not opened.needs_secret:
        return None
    path = opened.config.secrets.file
    if opened.has_memory and not secrets.is_there(path):
        try:
            is_used = asyncio.run(_is_used(opened.config.ledger))
        except LedgerUnavailable as error:
            why = f"There is no secret file {path}, and whether the ledger was begun with one cannot be told"
            raise ValueError(f"{why}: {error.reason}.") from None
        if is_used:
            raise ValueError(NO_SECRET.format(path=path))
    return secrets.load(path)


async def _is_used(settings: LedgerSettings) -> bool:
    if settings.url.startswith(SQLITE) and not Path(settings.url.removeprefix(SQLITE)).exists():
        return False  # neither may its folder be
    try:
        return bool(await (await open_books(settings.url)).facts())
    except NoLedger:
        return False
