"""Folders of .parquet files with scores, for tests, and the command line on them."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scoreveil import cli

SECRET = b"a secret of the tests"


def write(folder, files=3, rows=50):
    """Files of scores in two folders, and what is none of them."""
    rng = np.random.default_rng(0)
    (folder / "b").mkdir(parents=True)
    for i in range(files):
        columns = {f"p{c}": column for c, column in enumerate(rng.dirichlet(np.ones(3), rows).T)}
        place = folder / "b" if i % 2 else folder
        pq.write_table(pa.table({"id": np.arange(rows) + i * rows, **columns}), place / f"part-{i}.parquet")
    (folder / "_SUCCESS").touch()
    (folder / ".part-0.parquet.part").write_bytes(b"")
    return folder


def content(folder):
    return {str(f.relative_to(folder)): pq.read_table(f).to_pydict() for f in sorted(folder.rglob("*.parquet"))}


def run(*arguments):
    with pytest.raises(SystemExit) as stopped:
        cli.main([str(argument) for argument in arguments])
    return stopped.value.code


def secret_in(folder):
    """A file with the secret."""
    file = folder / "secret"
    file.write_bytes(SECRET)
    file.chmod(0o600)
    return file
