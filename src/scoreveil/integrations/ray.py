"""Ray: batches of a dataset, tasks and shadow models on many workers.

    import ray
    from scoreveil.integrations.ray import VeilBatches

    options = {"epsilon": 2.0, "columns": "scores", "records": "id", "secret": "veil.key"}
    veiled = ray.data.read_parquet(path).map_batches(
        VeilBatches, fn_constructor_kwargs=options, batch_format="numpy", concurrency=2
    )

Sticky across workers and machines: a draw is a function of the secret and what is drawn for, so it does not matter who
draws. A veil that is sent leaves its secret behind: give the path of the secret's file, or name that file in
SCOREVEIL_SECRET_FILE on every machine. Bytes given in `fn_constructor_kwargs` would be sent by Ray itself.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from scoreveil.extras import needs
from scoreveil.integrations.columns import ColumnVeil

with needs("ray"):
    import joblib
    import ray
    from joblib.parallel import ParallelBackendBase

Item = TypeVar("Item")
Result = TypeVar("Result")


class VeilBatches(ColumnVeil):
    """For `ray.data.Dataset.map_batches`, in batch_format="numpy"; each worker makes its veil once."""


def start(workers: int | None = None) -> None:
    """Connect to the cluster that RAY_ADDRESS names, else start so many workers here; nothing if that is done."""
    if ray.is_initialized():
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a tool for privacy does not report on its users
    here: dict[str, Any] = {} if os.environ.get("RAY_ADDRESS") else {"num_cpus": workers, "include_dashboard": False}
    ray.init(log_to_driver=False, logging_level="ERROR", **here)


def each(function: Callable[[Item], Result], items: Iterable[Item], workers: int | None = None) -> Iterator[Result]:
    """`function` of every item, on the cluster, as they are done.

    A task whose worker dies is run again, so a function must leave all of its work or none. What it raises is raised
    here, and ends the rest.
    """
    start(workers)
    function_there = ray.put(function)  # once, and not with every item
    pending = [_call.remote(function_there, item) for item in items]
    try:
        while pending:
            (done,), pending = ray.wait(pending)
            yield ray.get(done)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None  # as it was raised there, without the worker's own lines
    finally:
        for unwanted in pending:
            ray.cancel(unwanted)


@ray.remote(max_retries=-1)
def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


class JoblibTasks(ParallelBackendBase):
    """joblib's tasks as Ray's. Ray's own backend cannot hand back results one by one, as the audit takes them."""

    supports_retrieve_callback = True

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        available = int(ray.cluster_resources().get("CPU", 1))
        return available if n_jobs is None or n_jobs < 0 else max(1, n_jobs)

    def configure(self, n_jobs: int = 1, parallel: Any = None, **_: Any) -> int:
        self.parallel = parallel
        return self.effective_n_jobs(n_jobs)

    def submit(self, func: Callable[[], Any], callback: Callable[[Any], None] | None = None) -> Any:
        future = _call.remote(func).future()
        if callback is not None:
            future.add_done_callback(callback)
        return future

    def retrieve_result_callback(self, out: Any) -> Any:
        try:
            return out.result()
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None


@contextmanager
def joblib_on_ray(workers: int | None = None) -> Iterator[None]:
    """What joblib runs in this block, such as the shadow models of an audit, runs on the cluster."""
    start(workers)
    joblib.register_parallel_backend("ray", JoblibTasks)
    with joblib.parallel_config(backend="ray"):
        yield
