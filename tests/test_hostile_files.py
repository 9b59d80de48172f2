"""Files that are made to exhaust memory, or to be waited for: each is refused in a sentence, in little memory."""

import gzip
import io
import multiprocessing
import os
import resource
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from numpy.lib import format as npy

from gateway_servers import SCOREVEIL
from scoreveil.gateway import config_file, startup_checks
from scoreveil.gateway.config import ConfigError
from scoreveil.gateway.opened import OpenedConfig, open_config

LIMIT = 3 << 30  # of address space, most of which is never touched
MIB = 1 << 20


def refused(folder: Path, *arguments: str) -> str:
    """The error of a command that may take little memory."""
    run = subprocess.run(
        [str(SCOREVEIL), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT)),
    )
    assert run.returncode == 2, run.stderr
    assert "Traceback" not in run.stderr
    assert not list(folder.glob(".*.part"))
    return run.stderr


def expanding(path: Path, head: bytes, unit: bytes) -> None:
    """Write a gibibyte of one byte, compressed."""
    with gzip.open(path, "wb") if path.suffix == ".gz" else pyarrow.CompressedOutputStream(str(path), "zstd") as file:
        file.write(head)
        for _ in range(1024):
            file.write(unit * MIB)


@pytest.mark.parametrize("head", [b"a,b\n0.5,0.5\n", b""], ids=["row", "header"])
@pytest.mark.parametrize("codec", [".gz", ".zst"])
def test_a_line_that_expands_to_gigabytes_is_refused(head: bytes, codec: str, tmp_path: Path) -> None:
    path = tmp_path / f"in.csv{codec}"
    expanding(path, head, b"0")
    assert path.stat().st_size < 2 * MIB
    error = refused(tmp_path, "protect", path.name, "-o", f"out.csv{codec}", "--epsilon", "2")
    assert "has a line of more than 16 MiB" in error


@pytest.mark.parametrize("head", [b'{"a": 0.5, "b": 0.5}\n', b""], ids=["row", "first"])
def test_an_object_that_expands_to_gigabytes_is_refused(head: bytes, tmp_path: Path) -> None:
    expanding(tmp_path / "in.jsonl.gz", head, b"[")
    error = refused(tmp_path, "protect", "in.jsonl.gz", "-o", "out.jsonl.gz", "--epsilon", "2")
    assert "has a line of more than 16 MiB" in error


def test_lines_just_below_the_longest_are_read(tmp_path: Path) -> None:
    text = "x" * (15 * MIB)
    (tmp_path / "in.csv").write_text(f"a,b,c\n0.25,0.75,{text}\n0.5,0.5,z\n")
    command = [str(SCOREVEIL), "protect", "in.csv", "-o", "out.csv", "--epsilon", "2", "--columns", "a,b"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "out.csv").read_text().count(text) == 1


def test_a_header_of_very_many_equal_names_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("a," * 250_000 + "b\n")
    assert "'a' more than once" in refused(tmp_path, "protect", "in.csv", "-o", "out.csv", "--epsilon", "2")


@pytest.mark.parametrize("kind", ["cell", "skewed", "list"])
def test_a_row_group_that_expands_to_gigabytes_is_refused(kind: str, tmp_path: Path) -> None:
    size, rows = 300 * MIB, 1 if kind != "skewed" else 1000
    if kind == "list":
        ends = pyarrow.py_buffer(np.array([0, size // 4], dtype=np.int32))
        values = pyarrow.array(np.zeros(size // 4))
        column = pyarrow.Array.from_buffers(pyarrow.list_(pyarrow.float64()), 1, [None, ends], children=[values])
    else:
        ends = np.zeros(rows + 1, dtype=np.int64)
        ends[rows // 2 + 1 :] = size
        buffers = [None, pyarrow.py_buffer(ends), pyarrow.py_buffer(np.full(size, 48, dtype=np.uint8))]
        column = pyarrow.Array.from_buffers(pyarrow.large_string(), rows, buffers)
    half = np.full(rows, 0.5)
    table = {"s": column} if kind == "list" else {"a": half, "b": half, "s": column}
    is_text = kind != "list"
    pyarrow.parquet.write_table(
        pyarrow.table(table), tmp_path / "in.parquet", compression="zstd", use_dictionary=not is_text
    )
    del table, column
    columns = "a,b" if is_text else "s"
    error = refused(tmp_path, "protect", "in.parquet", "-o", "out.parquet", "--epsilon", "2", "--columns", columns)
    assert "MiB in one row group" in error


def header(shape: tuple[int, ...], fortran: bool = False) -> bytes:
    stream = io.BytesIO()
    npy.write_array_header_1_0(stream, {"descr": "<f8", "fortran_order": fortran, "shape": shape})
    return stream.getvalue()


@pytest.mark.parametrize(("shape", "fortran"), [((1, 10**11), False), ((10**11, 2), False), ((10**11, 2), True)])
@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_a_header_that_claims_more_than_there_is_is_refused(
    shape: tuple[int, ...], fortran: bool, suffix: str, tmp_path: Path
) -> None:
    content = header(shape, fortran) + bytes(100)
    if suffix == ".npy":
        (tmp_path / "in.npy").write_bytes(content)
    else:
        with zipfile.ZipFile(tmp_path / "in.npz", "w") as made:
            made.writestr("scores.npy", content)
    error = refused(tmp_path, "protect", f"in{suffix}", "-o", f"out{suffix}", "--epsilon", "2")
    assert "MiB; that is too large" in error or "a file that ends before it does" in error


# Veils


def veil_of(folder: Path, table: bytes, zeros: int = 0) -> None:
    with zipfile.ZipFile(folder / "veil.npz", "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("veil.npy", header(()) + bytes(8))
        with made.open("table.npy", "w", force_zip64=True) as file:
            file.write(table)
            for _ in range(zeros):
                file.write(bytes(MIB))


def protect_with(folder: Path, veil: str) -> str:
    (folder / "in.csv").write_text("a,b\n0.5,0.5\n")
    return refused(folder, "protect", "in.csv", "-o", "out.csv", "--veil", veil)


def test_a_veil_that_expands_to_gigabytes_is_refused(tmp_path: Path) -> None:
    veil_of(tmp_path, header((1 << 27,)), 1024)
    assert "Its tables are too large." in protect_with(tmp_path, "veil.npz")
    veil_of(tmp_path, header((10**11,)))  # which only claims it
    assert "veil.npz is damaged" in protect_with(tmp_path, "veil.npz")


def test_a_veil_that_is_no_file_is_neither_waited_for_nor_read_for_ever(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    for veil in ("pipe.json", "/dev/zero", str(tmp_path)):
        assert "is not a file" in protect_with(tmp_path, veil)


@pytest.mark.parametrize("text", ["[" * MIB, '{"a":' * MIB, '{"sha256": "", "format": ' + "9" * MIB + "}"])
def test_deep_and_long_json_is_no_veil(text: str, tmp_path: Path) -> None:
    (tmp_path / "veil.json").write_text(text)
    assert "veil.json is damaged" in protect_with(tmp_path, "veil.json")


# What a gateway's configuration names


def an_onnx_model(folder: Path, nodes: list[Any], tables: list[Any], features: int = 2) -> OpenedConfig:
    from onnx import TensorProto, helper

    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", features])
    scores = helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", 2])
    graph = helper.make_graph(nodes, "hostile", [given], [scores], tables)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    made.ir_version = 9
    (folder / "m.onnx").write_bytes(made.SerializeToString())
    return open_config(config_file.parse({"models": {"m": {"onnx": "m.onnx", "epsilon": 2.0}}}, folder))


def test_a_model_that_never_ends_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from onnx import TensorProto, helper, numpy_helper

    inside = [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Identity", ["v"], ["w"])]
    given = [helper.make_tensor_value_info(name, kind, size) for name, kind, size in (
        ("i", TensorProto.INT64, []), ("go", TensorProto.BOOL, []), ("v", TensorProto.FLOAT, [None, 2])
    )]  # fmt: skip
    ends = [
        helper.make_tensor_value_info("on", TensorProto.BOOL, []),
        helper.make_tensor_value_info("w", TensorProto.FLOAT, [None, 2]),
    ]
    loop = helper.make_node("Loop", ["", "true", "x"], ["y"], body=helper.make_graph(inside, "loop", given, ends))
    nodes = [loop, helper.make_node("Softmax", ["y"], ["scores"])]
    config = an_onnx_model(tmp_path, nodes, [numpy_helper.from_array(np.array(True), "true")])
    monkeypatch.setattr(startup_checks, "MAX_SECONDS", 3.0)
    for opened in (startup_checks.before_serving, startup_checks.check):
        with pytest.raises(ConfigError, match=r"not opened and tried within 3 seconds\."):
            opened(config)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("location", ["/etc/passwd", "../../etc/passwd", "link.bin", "/dev/zero"])
def test_a_model_reads_no_other_files(location: str, tmp_path: Path) -> None:
    from onnx import TensorProto, helper

    (tmp_path / "link.bin").symlink_to("/etc/passwd")
    table = TensorProto(name="w", dims=[1, 2], data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("length", "8")):
        table.external_data.add(key=key, value=value)
    nodes = [helper.make_node("Add", ["x", "w"], ["y"]), helper.make_node("Softmax", ["y"], ["scores"])]
    with pytest.raises(ConfigError, match=r"^models\.m: ONNX Runtime cannot open .*m\.onnx \(Fail\)\.$"):
        startup_checks.check(an_onnx_model(tmp_path, nodes, [table]))


def test_a_model_of_very_large_inputs_is_not_tried(tmp_path: Path) -> None:
    from onnx import helper, numpy_helper

    tables = [numpy_helper.from_array(np.array([i], np.int64), name) for i, name in enumerate(("a", "one", "b"))]
    cut = helper.make_node("Slice", ["x", "a", "b", "one"], ["y"])
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    config = an_onnx_model(tmp_path, [cut, helper.make_node("Softmax", ["y"], ["scores"])], tables, 30_000_000)
    startup_checks.before_serving(config)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss - before < 1 << 20  # kilobytes; it took 6 GB


HOSTILE = ("pipe.npy", "/dev/zero", "/", "/etc/passwd")
PLACES = [(place, given) for place in ("typical", "veil", "onnx", "skops") for given in HOSTILE]


# a reference is a text that ends in .npy
@pytest.mark.parametrize(("place", "given"), [*PLACES, ("reference", "pipe.npy")])
def test_config_check_neither_waits_for_a_pipe_nor_reads_a_device_nor_quotes_a_file(
    place: str, given: str, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe.npy")
    model = {"python": "light:make", "epsilon": 2.0}
    if place in ("onnx", "skops"):
        del model["python"]
    if place == "veil":
        del model["epsilon"]
    lines = [f"{key} = {value!r}" for key, value in model.items()]
    lines += ["memory = { answers = 1, typical = " + repr(given) + " }"] if place == "typical" else []
    lines += [] if place == "typical" else [f"{place} = {given!r}"] + ["keep = 2"] * (place == "reference")
    (tmp_path / "gateway.toml").write_text("\n".join(["[models.m]", *lines]))
    error = refused(tmp_path, "config", "check", "gateway.toml")
    assert "root:" not in error
    assert error.startswith("Error: models.m")


@pytest.mark.parametrize("name", ["schema.json", "1.npy"])
def test_a_skops_file_that_expands_to_gigabytes_is_refused(name: str, tmp_path: Path) -> None:
    with (
        zipfile.ZipFile(tmp_path / "m.skops", "w", zipfile.ZIP_DEFLATED) as made,
        made.open(name, "w", force_zip64=True) as file,
    ):
        for _ in range(1024):
            file.write(bytes(MIB))
    (tmp_path / "gateway.toml").write_text('models.m = { skops = "m.skops", epsilon = 2.0 }')
    error = refused(tmp_path, "config", "check", "gateway.toml")
    assert error == "Error: models.m: m.skops is not opened. Its tables are too large.\n"
