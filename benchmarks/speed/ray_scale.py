"""How much faster two Ray workers protect a dataset than one; ratios taken in one run.

python -m benchmarks ray_scale [--short]     writes benchmarks/speed/ray_scale.json, unless short
"""

import argparse
import json
import os
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import ray

from scoreveil import Veil
from scoreveil.files import dataset
from scoreveil.integrations import ray as engine

CLASSES = 10
GOAL = 1.7


@dataclass(frozen=True)
class Size:
    vectors: int
    files: int


FULL, SHORT = Size(100_000_000, 64), Size(200_000, 4)


def write(folder: Path, size: Size) -> None:
    """One file of synthetic scores, under many names: what is timed is reading, veiling and writing."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    scores = rng.dirichlet(np.full(CLASSES, 0.3), size.vectors // size.files).astype(np.float32)
    table = pa.table({f"class_{c}": scores[:, c] for c in range(CLASSES)})
    pq.write_table(table, folder / "part-0.parquet", use_dictionary=False, compression="none")
    for i in range(1, size.files):
        (folder / f"part-{i}.parquet").hardlink_to(folder / "part-0.parquet")


def run(source: Path, target: Path, workers: int) -> dict[str, float]:
    """Seconds to protect it all, with workers that are up and warm; what they were, and what they wrote."""
    veil = Veil(2.0)
    one = partial(dataset.protect_partition, veil=veil, columns=None, one_core=True)
    engine.start(workers)
    try:
        warm = dataset.begin(str(source), f"{target}-warm", veil, None)[: 2 * workers]
        list(engine.each(one, warm))
        todo = dataset.begin(str(source), str(target), veil, None)
        started = time.perf_counter()
        list(engine.each(one, todo))
        taken = time.perf_counter() - started
        cores = ray.cluster_resources()["CPU"]
    finally:
        ray.shutdown()
    written = sum(pq.ParquetFile(part).metadata.num_rows for part in target.glob("*.parquet"))
    return {"seconds": taken, "cores": cores, "written": written}


def measure(size: Size) -> dict[str, float | str]:
    day, load = f"{datetime.now(UTC):%Y-%m-%d}", os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "in"
        write(source, size)
        one, two = (run(source, Path(folder) / f"out-{workers}", workers) for workers in (1, 2))
    for workers, found in ((1, one), (2, two)):
        if (found["cores"], found["written"]) != (workers, size.vectors):
            raise SystemExit(f"Expected {size.vectors:,} vectors from {workers} cores; found {found}.")
    times = {"one": one["seconds"], "two": two["seconds"], "ratio": one["seconds"] / two["seconds"], "goal": GOAL}
    return {"day": day, "load before": load, "vectors": size.vectors, **times}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--short", action="store_true")
    short = parser.parse_args().short
    found = measure(SHORT if short else FULL)
    print(json.dumps(found, indent=2))
    if not short:
        Path(__file__).with_suffix(".json").write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
