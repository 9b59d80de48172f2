"""What is counted, for Prometheus, summed over all workers of a machine. Labels are models, clients' names never.

Workers write to memory-mapped files in one folder (prometheus_client's multiprocess mode), which the admin port adds
up. Distortion compares raw scores with veiled ones, so no single request may show in it: each worker publishes sums
of `CHUNK` rows, rounded.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
CHUNK = 1000  # rows
BUCKETS = (
    0.0002,
    0.0005,
    0.001,
    0.002,
    0.003,
    0.005,
    0.0075,
    0.01,
    0.02,
    0.05,
    0.1,
    0.2,
    0.5,
    1.0,
    2.0,
    5.0,
    10.0,
    30.0,
)


def use_folder(folder: Path) -> None:
    """Say where workers count. prometheus_client reads this when it is imported, so it comes first."""
    os.environ[VARIABLE] = str(folder)


class Metrics:
    """The counters of one worker."""

    def __init__(self, models: Iterable[str]) -> None:
        from prometheus_client import CollectorRegistry, Counter, Histogram

        registry = CollectorRegistry()
        self.requests = Counter("scoreveil_requests", "Requests, by status.", ["model", "status"], registry=registry)
        self.rows = Counter("scoreveil_rows", "Score vectors released.", ["model"], registry=registry)
        self.refusals = Counter("scoreveil_refusals", "Refusals, by reason.", ["model", "reason"], registry=registry)
        self.charged = Counter("scoreveil_charged", "Releases charged to records.", ["model"], registry=registry)
        self.replayed = Counter(
            "scoreveil_replayed", "Answers replayed, their budget spent.", ["model"], registry=registry
        )
        self.distorted = Counter("scoreveil_distortion_rows", "Rows in the sum.", ["model"], registry=registry)
        self.distortion = Counter("scoreveil_distortion_l2", "Sum of ‖z - y‖₂ over them.", ["model"], registry=registry)
        self.seconds = Histogram(
            "scoreveil_seconds", "Time from a request's first byte.", ["model"], buckets=BUCKETS, registry=registry
        )
        self.of: dict[str, ModelMetrics] = {}
        for name in models:
            self.add(name)

    def add(self, model: str) -> "ModelMetrics":
        """The counters of a model; a reload may bring new ones."""
        if model not in self.of:
            self.of[model] = ModelMetrics(self, model)
        return self.of[model]


class ModelMetrics:
    """The counters of one model, found once."""

    def __init__(self, metrics: Metrics, model: str) -> None:
        self._metrics, self._model = metrics, model
        self._ok = metrics.requests.labels(model, "200")
        self._rows = metrics.rows.labels(model)
        self._seconds = metrics.seconds.labels(model)
        self.charged = metrics.charged.labels(model)
        self.replayed = metrics.replayed.labels(model)
        self._pairs: list[tuple[NDArray[Any], NDArray[Any]]] = []
        self._count = 0

    def answered(self, rows: int, seconds: float) -> None:
        self._ok.inc()
        self._rows.inc(rows)
        self._seconds.observe(seconds)

    def refused(self, status: int, reason: str, seconds: float) -> None:
        self._metrics.requests.labels(self._model, str(status)).inc()
        self._metrics.refusals.labels(self._model, reason).inc()
        self._seconds.observe(seconds)

    def distorted(self, before: NDArray[Any], after: NDArray[Any]) -> None:
        """Remember a release for the sum, which is taken for many at a time."""
        self._pairs.append((before, after))
        self._count += len(before)
        if self._count >= CHUNK:
            moved = np.concatenate([np.subtract(z, y, dtype=np.float64) for y, z in self._pairs])
            mean = float(np.sqrt(np.einsum("ij,ij->i", moved, moved)).mean())
            # to two digits: what one row adds to a thousand is less than is shown
            self._metrics.distortion.labels(self._model).inc(round(mean, 2) * self._count)
            self._metrics.distorted.labels(self._model).inc(self._count)
            self._pairs, self._count = [], 0


def exposition() -> tuple[bytes, str]:
    """Everything that all workers counted, in Prometheus' text format, and its content type."""
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
    from prometheus_client.multiprocess import MultiProcessCollector

    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return generate_latest(registry), CONTENT_TYPE_LATEST


@dataclass(frozen=True)
class State:
    """What the page shows of one model."""

    model: str
    requests: int
    refusals: dict[str, int]
    rows: int
    charged: int
    replayed: int
    distortion: float | None  # mean ‖z - y‖₂
    latency: dict[str, float]  # milliseconds by quantile


def states(models: Iterable[str]) -> list[State]:
    """The same counts, read for the page."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.multiprocess import MultiProcessCollector

    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    samples = [sample for family in registry.collect() for sample in family.samples]

    def total(name: str, model: str) -> float:
        return sum(s.value for s in samples if s.name == name and s.labels.get("model") == model)

    def of(model: str) -> State:
        refusals: dict[str, int] = {}
        for sample in samples:
            if sample.name == "scoreveil_refusals_total" and sample.labels["model"] == model:
                reason = sample.labels["reason"]
                refusals[reason] = refusals.get(reason, 0) + int(sample.value)
        rows = total("scoreveil_distortion_rows_total", model)
        buckets = sorted(
            (float(s.labels["le"]), s.value)
            for s in samples
            if s.name == "scoreveil_seconds_bucket" and s.labels["model"] == model
        )
        return State(
            model,
            int(total("scoreveil_requests_total", model)),
            refusals,
            int(total("scoreveil_rows_total", model)),
            int(total("scoreveil_charged_total", model)),
            int(total("scoreveil_replayed_total", model)),
            total("scoreveil_distortion_l2_total", model) / rows if rows else None,
            {f"p{q:g}": quantile(buckets, q / 100) * 1000 for q in (50, 95, 99)},
        )

    return [of(model) for model in models]


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
