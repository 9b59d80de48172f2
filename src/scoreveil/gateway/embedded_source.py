"""A model inside, as a source of scores. Short calls run where they are; long ones in a thread, beside the others."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

from scoreveil.gateway.config import Limits
from scoreveil.gateway.opened import OpenedModel
from scoreveil.gateway.sources import TensorQuery, TensorSource
from scoreveil.inference_protocol.errors import model_too_slow, upstream_failed
from scoreveil.inference_protocol.tensors import Arrays, TensorSpec

SHORT = 0.002  # seconds that a call may hold up the others


class EmbeddedSource(TensorSource):
    def __init__(self, model: OpenedModel, limits: Limits) -> None:
        super().__init__(model, limits)
        assert model.embedded is not None  # `load_model` has loaded it
        self.embedded = model.embedded
        self.platform, self.classes = self.embedded.platform, self.embedded.classes
        # seconds for each row of the last two calls; the first call is not trusted to be short
        self._last = SHORT, SHORT
        self._pool = ThreadPoolExecutor(max_workers=2, thread_name_prefix="model")

    async def infer(self, query: TensorQuery, seconds: float) -> Arrays:
        arrays = query.arrays()
        # the shorter one counts: a call that only waited for the processor makes none after it wait for a thread
        if min(self._last) * query.rows < SHORT:
            return self._timed(arrays, query.asked, query.rows)
        work = asyncio.get_running_loop().run_in_executor(self._pool, self._timed, arrays, query.asked, query.rows)
        try:
            return await asyncio.wait_for(work, seconds)
        except TimeoutError:
            raise model_too_slow() from None

    def _timed(self, arrays: Arrays, outputs: list[str], rows: int) -> Arrays:
        start = time.perf_counter()
        try:
            return self.embedded.run(arrays, outputs)
        except Exception as error:  # whatever a model raises may quote its input
            raise upstream_failed("model", f"the model raised {type(error).__name__}") from None
        finally:
            self._last = self._last[1], (time.perf_counter() - start) / rows

    async def declared(self) -> tuple[list[TensorSpec], list[TensorSpec]]:
        return list(self.inputs), list(self.embedded.outputs.values())

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
