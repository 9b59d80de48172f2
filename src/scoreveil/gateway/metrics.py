"""What is counted, for Prometheus, summed over all workers of a machine. Labels are models, clients' names never.

Workers write to memory-mapped files in one folder (prometheus_client's multiprocess mode), which the admin port adds
up. Nothing here depends on a score: a sum over raw and veiled ones, of however many rows, tells of each who sends the
others.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
BUCKETS = (0.0002, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)  # s


def use_folder(folder: Path) -> None:
    """Say where workers count. prometheus_client reads this when it is imported, so it comes first."""
    os.environ[VARIABLE] = str(folder)


class Metrics:
    """The counters of one worker."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Histogram, values

        if VARIABLE in os.environ:  # a worker does not fork: without this, every count asks who it is
            process = os.getpid()
            values.ValueClass = values.MultiProcessValue(lambda: process)  # type: ignore[no-untyped-call]
        registry = CollectorRegistry()

        def counter(name: str, words: str, *labels: str) -> Counter:
            return Counter(f"scoreveil_{name}", words, ["model", *labels], registry=registry)

        self.requests = counter("requests", "Requests, by status.", "status")
        self.rows = counter("rows", "Score vectors released.")
        self.refusals = counter("refusals", "Refusals, by reason.", "reason")
        self.charged = counter("charged", "Fresh answers, charged to their records.")
        self.repeated = counter("repeated", "Earlier answers that were given again.")
        self.seconds = Histogram(
            "scoreveil_seconds", "Time from a request's first byte.", ["model"], buckets=BUCKETS, registry=registry
        )
        self._models: dict[str, ModelMetrics] = {}

    def add(self, model: str) -> "ModelMetrics":
        """The counters of a model; a reload may bring new ones."""
        if model not in self._models:
            self._models[model] = ModelMetrics(self, model)
        return self._models[model]


class ModelMetrics:
    """The counters of one model, found once."""

    def __init__(self, metrics: Metrics, model: str) -> None:
        self._metrics, self._model = metrics, model
        self._ok = metrics.requests.labels(model, "200")
        self._rows = metrics.rows.labels(model)
        self._seconds = metrics.seconds.labels(model)
        self.charged = metrics.charged.labels(model)
        self.repeated = metrics.repeated.labels(model)

    def answered(self, rows: int, seconds: float) -> None:
        self._ok.inc()
        self._rows.inc(rows)
        self._seconds.observe(seconds)

    def refused(self, status: int, reason: str, seconds: float) -> None:
        self._metrics.requests.labels(self._model, str(status)).inc()
        self._metrics.refusals.labels(self._model, reason).inc()
        self._seconds.observe(seconds)


def exposition() -> tuple[bytes, str]:
    """Everything that all workers counted, in Prometheus' text format, and its content type."""
    from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

    return generate_latest(_registry()), CONTENT_TYPE_LATEST


def _registry() -> "CollectorRegistry":
    from prometheus_client import CollectorRegistry
    from prometheus_client.multiprocess import MultiProcessCollector

    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return registry


def states(models: Iterable[str]) -> dict[str, dict[str, object]]:
    """The same counts by model, read for the page; latencies are milliseconds by quantile."""
    samples = [sample for family in _registry().collect() for sample in family.samples]
    return {model: _state(model, [s for s in samples if s.labels.get("model") == model]) for model in models}


def _state(model: str, samples: list[Any]) -> dict[str, object]:
    def by_label(name: str, label: str) -> dict[str, float]:
        sums: dict[str, float] = {}
        for sample in samples:
            if sample.name == f"scoreveil_{name}":
                sums[sample.labels[label]] = sums.get(sample.labels[label], 0.0) + sample.value
        return sums

    totals = ("requests", "rows", "charged", "repeated")
    buckets = sorted((float(upper), count) for upper, count in by_label("seconds_bucket", "le").items())
    return {
        "model": model,
        **{name: int(sum(by_label(f"{name}_total", "model").values())) for name in totals},
        "refusals": {reason: int(count) for reason, count in by_label("refusals_total", "reason").items()},
        "latency": {f"p{q:g}": quantile(buckets, q / 100) * 1000 for q in (50, 95, 99)},
    }


def quantile(buckets: list[tuple[float, float]], q: float) -> float:
    """The q-quantile of a cumulative histogram, on a straight line within its bucket."""
    count = buckets[-1][1] if buckets else 0.0
    below, before = 0.0, 0.0
    for upper, cumulative in buckets:
        if cumulative >= q * count and cumulative > before:
            if upper == float("inf"):
                return below
            return below + (upper - below) * (q * count - before) / (cumulative - before)
        below, before = upper if upper != float("inf") else below, cumulative
    return 0.0
