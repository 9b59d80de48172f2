"""`scoreveil protect` on a parquet file, against pyarrow reading and writing the same file and doing nothing else.

Twice: as whole processes, and as calls in this one, where everything is loaded. All run in turns. The copy uses the
row groups of the file that `protect` wrote as its batches, and its compression. Veiled scores take few values, so that
parquet writes them faster than raw ones: the third opponent reads the input and writes the veiled output, ready made.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import ENVIRONMENT
from benchmarks.speed.batches import CLASSES, EPSILON, scores
from benchmarks.speed.timing import Contestant, Effort, figures, interleave, significant, timed
from scoreveil import Veil

COMMAND = Path(sys.executable).with_name("scoreveil")
CHUNK = 250_000  # rows made at a time


def measure(rows: int, effort: Effort) -> list[dict[str, Any]]:
    """For float64 and float32 columns: both times and their ratio; or the reason why there are none."""
    reason = _missing()
    if reason:
        return [{"dtype": dtype, "rows": rows, "reason": reason} for dtype in ("float64", "float32")]
    with tempfile.TemporaryDirectory() as folder:
        return [_measure(dtype, rows, effort, Path(folder)) for dtype in ("float64", "float32")]


def _missing() -> str:
    """Why `scoreveil protect` cannot run here; empty if it can."""
    if not COMMAND.exists():
        return f"there is no {COMMAND.name} command beside {Path(sys.executable).name}"
    done = subprocess.run([COMMAND, "protect", "--help"], capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["nothing"]
        return f"scoreveil protect --help failed: {said[-1]}"
    return ""


def _measure(dtype: str, rows: int, effort: Effort, folder: Path) -> dict[str, Any]:
    import pyarrow.parquet as pq

    from scoreveil.files import protect

    given, veiled, copied = (folder / f"{name}-{dtype}.parquet" for name in ("given", "veiled", "copied"))
    write_scores(given, rows, dtype)
    command = _onto(
        veiled, _process([str(COMMAND), "protect", str(given), "-o", str(veiled), "--epsilon", f"{EPSILON:g}"])
    )
    command()
    batch, compression = _layout(veiled)
    written = pq.read_table(veiled).to_batches(batch)
    alone = [sys.executable, __file__, str(given), str(copied), str(batch), compression]
    contestants = {
        "command": command,
        "pyarrow_process": _onto(copied, _process(alone)),
        "protect": _onto(veiled, lambda: protect(given, veiled, Veil(EPSILON))),
        "pyarrow": _onto(copied, lambda: copy(given, copied, batch, compression)),
        "pyarrow_same_output": _onto(copied, lambda: copy(given, copied, batch, compression, written)),
    }
    times = {name: figures(runs, rows) for name, runs in interleave(contestants, effort).items()}
    return {
        "dtype": dtype,
        "rows": rows,
        "columns": CLASSES,
        "batch": batch,
        "compression": compression,
        "input_bytes": given.stat().st_size,
        **times,
        "ratio_of_processes": significant(times["command"]["ns_per_row"] / times["pyarrow_process"]["ns_per_row"]),
        "ratio_of_calls": significant(times["protect"]["ns_per_row"] / times["pyarrow"]["ns_per_row"]),
        "ratio_same_output": significant(times["protect"]["ns_per_row"] / times["pyarrow_same_output"]["ns_per_row"]),
    }


def _onto(output: Path, work: Callable[[], object]) -> Contestant:
    """Work that writes a file, which is not there yet."""
    run = timed(work)

    def fresh() -> float:
        output.unlink(missing_ok=True)
        return run()

    return fresh


def _process(command: list[str]) -> Callable[[], object]:
    def work() -> None:
        done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT)
        if done.returncode:
            raise RuntimeError(f"Expected {command[0]} to succeed, got: {done.stderr.strip()[-500:]}")

    return work


def write_scores(path: Path, rows: int, dtype: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = [f"class_{i}" for i in range(CLASSES)]
    schema = pa.schema([(name, pa.type_for_alias(dtype)) for name in names])
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, rows, CHUNK):
            part = np.ascontiguousarray(scores(min(CHUNK, rows - start), CLASSES, dtype, seed=start).T)
            writer.write_table(pa.table(list(part), schema=schema))


def _layout(path: Path) -> tuple[int, str]:
    """Rows in a row group, and the compression, of a parquet file."""
    import pyarrow.parquet as pq

    group = pq.ParquetFile(path).metadata.row_group(0)
    return int(group.num_rows), str(group.column(0).compression)


def copy(given: Path, out: Path, batch: int, compression: str, instead: Sequence[Any] | None = None) -> None:
    """Read and write with pyarrow, a batch at a time; or read that and write these batches in its stead."""
    import pyarrow.parquet as pq

    file = pq.ParquetFile(given)
    with pq.ParquetWriter(out, file.schema_arrow, compression=compression) as writer:
        for i, part in enumerate(file.iter_batches(batch_size=batch)):
            writer.write_batch(part if instead is None else instead[i])


if __name__ == "__main__":
    copy(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
