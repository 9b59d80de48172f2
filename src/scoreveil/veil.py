"""The object users hold.

    from scoreveil import Veil

    veil = Veil(epsilon=2.0)
    z = veil(scores)        # (k,) or (n, k); numpy in, numpy out; torch in, torch out; same dtype, device and shape
    veil.guarantee          # what is promised

Always true, for every ε, mechanism and dtype: rows are finite, non-negative and sum to 1; the class that
`numpy.argmax` picks stays; no two kept classes are inverted, and no other class passes them. Anything that is not a
batch of score vectors raises ValueError; raw scores are never returned.
"""

import io
import json
import os
import zipfile
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from scoreveil import accounting, randomness
from scoreveil.accounting import Guarantee
from scoreveil.mechanisms import isotonic, loading, published, reference
from scoreveil.mechanisms.isotonic import IsotonicSettings, Keep, Plan
from scoreveil.mechanisms.published import PublishedSettings, Reading
from scoreveil.mechanisms.reference import Reference
from scoreveil.mechanisms.scores import Array, check_epsilon, check_layout, check_rows, namespace

Scores = TypeVar("Scores", bound=Array)
Rows = NDArray[Any]
Mechanism = Literal["isotonic", "published"]
Settings = IsotonicSettings | PublishedSettings

BLOCK = 1 << 17  # scores processed at a time: memory beyond input and output does not grow with n
FORMAT = 1
# what parsing a file that is none, or damaged, may raise
DAMAGED = (
    *(ValueError, LookupError, TypeError, AttributeError, EOFError, OSError, NotImplementedError),
    *(zipfile.BadZipFile, zlib.error),
)
NUMPY_DTYPES = ("float16", "float32", "float64")


class Veil:
    """A veil over confidence scores, with one parameter.

    epsilon    how much shows through; or the settings of a mechanism, whole
    mechanism  "isotonic" (default), or "published": the paper's Algorithm 1 and Equation 2
    keep       isotonic: how many top classes keep their place; 1 by default, "all" for every class
    reference  isotonic: public scores (n, k), or a `Reference`: far less distortion for the same ε
    reading    published: "bounded" (default) or "printed"
    secret     at least 16 random bytes: the same scores always get the same answer
    model      a name; with a secret, other models get independent answers
    rng        a numpy Generator for tests and studies; without one draws are cryptographic
    threads    for large batches
    """

    def __init__(
        self,
        epsilon: float | Settings,
        mechanism: Mechanism = "isotonic",
        *,
        keep: Keep | None = None,
        reference: Array | Reference | None = None,
        reading: Reading | None = None,
        secret: bytes | None = None,
        model: str = "",
        rng: np.random.Generator | None = None,
        threads: int = 1,
    ) -> None:
        if secret is not None and rng is not None:
            raise ValueError("Expected a secret or an rng, got both: keyed draws leave nothing to a generator.")
        if not isinstance(threads, int) or threads < 1:
            raise ValueError(f"Expected threads to be a whole number >= 1, got {threads!r}.")
        if not isinstance(model, str):
            raise ValueError(f"Expected model to be a name, got {type(model).__name__}.")
        if rng is not None and not isinstance(rng, np.random.Generator):
            raise ValueError(f"Expected rng to be a numpy Generator, got {type(rng).__name__}.")
        self.settings = _settings(epsilon, mechanism, keep, reference, reading)
        self.reference = None if reference is None else _reference(reference, self.settings)
        self.model = model
        self.threads = threads
        self._rng = rng
        self._keyed = None if secret is None else randomness.KeyedDraws(secret, self._context())
        self._plans: dict[int, Plan] = {}
        loading.start()

    def __call__(self, scores: Scores, tags: Sequence[bytes] | None = None) -> Scores:
        """Veiled scores, of the same kind, dtype, device and shape.

        `tags`, one for each row, with a secret and numpy scores: the draw is a function of the secret, the cell and
        the tag. The same tag always gets the same answer, another tag an independent one: whoever counts releases
        names them by tags, and can repeat one without storing it.
        """
        if isinstance(scores, (list, tuple)):
            return cast(Scores, self(np.asarray(scores), tags))
        check_layout(scores)
        if isinstance(scores, np.ndarray):
            rows = np.ascontiguousarray(scores).reshape(-1, scores.shape[-1])
            if tags is not None:
                return cast(Scores, self._tagged(rows, tags).reshape(scores.shape))
            return cast(Scores, self._rows(rows).reshape(scores.shape))
        if tags is not None:
            raise ValueError(f"Expected numpy scores with tags, got {type(scores).__name__}.")
        xp = namespace(scores)
        if _fits_numpy(scores) and (self._keyed is not None or scores.device.type == "cpu"):
            # numpy shares host memory; keyed answers are the same bytes wherever the scores live
            return cast(Scores, xp.asarray(self(_to_numpy(scores)), device=scores.device))
        rows = scores[None, :] if scores.ndim == 1 else scores
        return cast(Scores, xp.reshape(self._array_rows(rows), scores.shape))

    @property
    def guarantee(self) -> Guarantee:
        """What one release promises, the relation it holds for, and its limits in words."""
        return accounting.guarantee(self.settings, reference=self.reference, snapped=self._keyed is not None)

    @property
    def epsilon(self) -> float:
        return self.settings.epsilon

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in asdict(self.settings).items())
        extras = [f"reference of {self.reference.classes} classes"] if self.reference else []
        extras += ["keyed"] if self._keyed else []
        return f"<Veil {self.settings.name}: {', '.join([shown, *extras])}>"

    # The draw

    def _rows(self, rows: Rows) -> Rows:
        """A contiguous numpy batch, in blocks, on as many threads as wanted."""
        n, k = rows.shape
        out = np.empty_like(rows)
        size = max(16, BLOCK // k // 64 * 64)  # whole groups of rows, as the kernels take them
        if n <= size:
            self._block(rows, 0, None, out)
            return out
        starts = range(0, n, size)

        def run(start: int, uniforms: NDArray[np.float64] | None = None) -> None:
            self._block(rows[start : start + size], start, uniforms, out[start : start + size])

        if self.threads == 1:
            for start in starts:
                run(start)
            return out
        with ThreadPoolExecutor(self.threads) as pool:
            # a generator's draws are taken here, in order, so that they do not depend on the threads
            jobs = [
                pool.submit(run, s, self._rng.random((min(size, n - s), self.settings.draws(k))) if self._rng else None)
                for s in starts
            ]
            for job in jobs:
                job.result()
        return out

    def _block(self, rows: Rows, first_row: int, uniforms: NDArray[np.float64] | None, out: Rows) -> None:
        """Veil one block into `out`, by the kernel where it is ready, else in plain numpy."""
        k = rows.shape[1]
        mechanism = self._mechanism(k)
        kernel = None if self._keyed else loading.kernel(mechanism)
        if kernel is None:
            check_rows(rows, first_row)
        if self._keyed is not None:
            self._keyed_block(rows, mechanism, self._keyed, out)
            return
        if uniforms is None:
            uniforms = self._uniforms(len(rows), k)
        if kernel is None:
            out[...] = _perturb(rows, mechanism, uniforms)
        elif kernel(rows, uniforms, out) >= 0:
            check_rows(rows, first_row)
            raise ValueError("Expected score vectors, got rows that are none.")

    def _tagged(self, rows: Rows, tags: Sequence[bytes]) -> Rows:
        """Keyed draws that depend on each row's tag too."""
        if self._keyed is None:
            raise ValueError("Expected a secret for tagged answers, got none.")
        if len(tags) != len(rows) or not all(isinstance(tag, bytes) for tag in tags):
            raise ValueError(f"Expected {len(rows)} tags of type bytes, one for each row, got others.")
        check_rows(rows)
        mechanism = self._mechanism(rows.shape[1])
        # a cell has a fixed length, so that it cannot be confused with the tag that follows
        messages = [b"tag" + cell.tobytes() + tag for cell, tag in zip(_cells(rows, mechanism), tags, strict=True)]
        uniforms = self._keyed.uniforms(messages, self.settings.draws(rows.shape[1]))
        return cast(Rows, _perturb(rows, mechanism, uniforms, keyed=True))

    def _uniforms(self, rows: int, k: int) -> NDArray[np.float64]:
        draws = self.settings.draws(k)
        return randomness.secure_uniforms(rows, draws) if self._rng is None else self._rng.random((rows, draws))

    def _keyed_block(
        self, rows: Rows, mechanism: Plan | PublishedSettings, keyed: randomness.KeyedDraws, out: Rows
    ) -> None:
        """Keyed draws, always in plain numpy, once per distinct cell: the bytes are the same on every machine."""
        uniforms, first, where = self._keyed_uniforms(rows, mechanism, keyed)
        out[...] = _perturb(rows[first], mechanism, uniforms, keyed=True)[where]

    def _keyed_uniforms(
        self, rows: Rows, mechanism: Plan | PublishedSettings, keyed: randomness.KeyedDraws
    ) -> tuple[Rows, Rows, Rows]:
        """Draws that are a function of the kept classes and the grid cell of the kept scores alone.

        One row of draws for each distinct cell, the first row in it, and the cell that each row is in.
        """
        as_bytes = _cells(rows, mechanism)
        distinct, first, where = np.unique(as_bytes, return_index=True, return_inverse=True)
        uniforms = keyed.uniforms([cell.tobytes() for cell in distinct], self.settings.draws(rows.shape[1]))
        return uniforms, first, where

    def _array_rows(self, rows: Array) -> Array:
        """A batch that stays on its device, in plain array operations of its own namespace."""
        xp, (n, k) = namespace(rows), rows.shape
        size = max(1, BLOCK * 8 // k)
        mechanism = self._mechanism(k)
        done = []
        for start in range(0, max(n, 1), size):
            block = rows[start : min(start + size, n), :]
            check_rows(block, start)
            if self._keyed is None:
                uniforms = self._uniforms(block.shape[0], k)
            else:
                host = _to_numpy(xp.astype(block, xp.float64))
                uniforms, _, where = self._keyed_uniforms(host, mechanism, self._keyed)
                uniforms = uniforms[where]
            on_device = xp.asarray(uniforms, device=rows.device)
            done.append(_perturb(block, mechanism, on_device, keyed=self._keyed is not None))
        return xp.concat(done, axis=0)

    def _mechanism(self, classes: int) -> Plan | PublishedSettings:
        if isinstance(self.settings, PublishedSettings):
            return self.settings
        if classes not in self._plans:
            self._plans[classes] = isotonic.plan(
                self.settings, classes, self.reference, snapped=self._keyed is not None
            )
        return self._plans[classes]

    def _context(self) -> bytes:
        """What keyed draws depend on besides the scores: another ε or reference must not reuse them."""
        named = {"mechanism": self.settings.name, "model": self.model, **asdict(self.settings)}
        tables = b"" if self.reference is None else self.reference.digest()
        return json.dumps(named, sort_keys=True).encode() + tables

    # Files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write settings and reference to .npz, or to .json where there is no reference. Never the secret."""
        path = Path(path)
        about = {"format": FORMAT, "mechanism": self.settings.name, "model": self.model, **asdict(self.settings)}
        tables = {} if self.reference is None else vars(self.reference)
        text = json.dumps({**about, "tables": sorted(tables)}, indent=2)
        if path.suffix == ".json":
            if tables:
                raise ValueError(f"Expected a .npz path for a veil with a reference, got {path.name}.")
            path.write_text(text + "\n", encoding="utf-8")
        elif path.suffix == ".npz":
            with path.open("wb") as file:
                np.savez_compressed(file, veil=np.array(text), **tables)
        else:
            raise ValueError(f"Expected a path ending in .json or .npz, got {path.name}.")

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, secret: bytes | None = None, threads: int = 1) -> "Veil":
        """Read what `save` wrote; anything else is a ValueError."""
        path = Path(path)
        content = path.read_bytes()
        try:
            settings, model, tables = _parsed(content, is_npz=path.suffix == ".npz")
        except DAMAGED as error:
            raise ValueError(
                f"Expected a file written by Veil.save, got {path.name}, which is not or damaged."
            ) from error
        return cls(settings, reference=tables, secret=secret, model=model, threads=threads)


def _parsed(content: bytes, is_npz: bool) -> tuple[Settings, str, Reference | None]:
    """The settings, model name and reference of a saved veil."""
    if is_npz:
        with np.load(io.BytesIO(content), allow_pickle=False) as saved:
            arrays = {name: saved[name] for name in saved.files}
        text = str(arrays.pop("veil")[()])
    else:
        text, arrays = content.decode(), {}
    about = json.loads(text)
    if about.pop("format") != FORMAT or sorted(arrays) != about.pop("tables"):
        raise ValueError("another format, or tables missing")
    mechanism, model = about.pop("mechanism"), about.pop("model")
    settings = {"isotonic": IsotonicSettings, "published": PublishedSettings}[mechanism](**about)
    return settings, str(model), Reference(**arrays) if arrays else None


def _settings(
    epsilon: float | Settings, mechanism: str, keep: Keep | None, reference: object, reading: Reading | None
) -> Settings:
    """The settings of the mechanism by name; only what was given is passed on, so defaults live there."""
    if isinstance(epsilon, (IsotonicSettings, PublishedSettings)):
        if (keep, reading) != (None, None):
            raise ValueError("Expected whole settings or single ones, got both.")
        if reference is not None and isinstance(epsilon, PublishedSettings):
            raise ValueError("Expected no reference for the published mechanism, which has no use for one.")
        return epsilon
    if isinstance(epsilon, (np.floating, np.integer)):
        epsilon = epsilon.item()
    check_epsilon(epsilon)
    epsilon = float(epsilon)
    if isinstance(keep, np.integer):
        keep = int(keep)
    if mechanism == "published":
        if keep not in (None, "all"):
            raise ValueError(f"Expected keep='all' for the published mechanism, which keeps all, got {keep!r}.")
        if reference is not None:
            raise ValueError("Expected no reference for the published mechanism, which has no use for one.")
        return PublishedSettings(epsilon) if reading is None else PublishedSettings(epsilon, reading)
    if mechanism != "isotonic":
        raise ValueError(f"Expected mechanism 'isotonic' or 'published', got {mechanism!r}.")
    if reading is not None:
        raise ValueError("Expected no reading for the isotonic mechanism: it belongs to the published one.")
    return IsotonicSettings(epsilon) if keep is None else IsotonicSettings(epsilon, keep)


def _reference(given: Array | Reference, settings: Settings) -> Reference:
    """Public scores, counted for these settings; or tables counted before."""
    assert isinstance(settings, IsotonicSettings)  # _settings refused the other
    if isinstance(given, Reference):
        return given
    if isinstance(given, (list, tuple)):
        given = np.asarray(given)
    check_layout(given)
    rows = np.atleast_2d(_to_numpy(given)).astype(np.float64)
    check_rows(rows)
    return reference.count(rows, settings.kept(rows.shape[1]), settings.levels)


def _perturb(rows: Array, mechanism: Plan | PublishedSettings, uniforms: Array, keyed: bool = False) -> Array:
    if isinstance(mechanism, Plan):
        return isotonic.perturb(rows, mechanism, uniforms)
    if keyed:
        return published.release(*published.snapped_scores(rows), None, mechanism, uniforms, rows.dtype)
    return published.perturb(rows, mechanism, uniforms)


def _cells(rows: Rows, mechanism: Plan | PublishedSettings) -> Rows:
    """The kept classes and the grid cell of the kept scores of each row, as bytes."""
    if isinstance(mechanism, PublishedSettings):
        kept, values = published.snapped_scores(rows)
    else:
        order, values = isotonic.top_scores(rows, mechanism)
        kept = order[:, mechanism.classes - mechanism.kept :]
    cells = np.ascontiguousarray(np.concatenate([kept, values], axis=1), dtype="<f8")
    return cells.view(np.dtype((np.void, cells.itemsize * cells.shape[1])))[:, 0]


def _fits_numpy(scores: Array) -> bool:
    """Whether these are torch scores of a dtype that numpy has."""
    of_torch = type(scores).__module__.partition(".")[0] == "torch"
    return of_torch and str(scores.dtype).removeprefix("torch.") in NUMPY_DTYPES


def _to_numpy(scores: Array) -> Rows:
    """Scores of any library as a numpy array, shared where they are in host memory."""
    if hasattr(scores, "detach"):
        scores = scores.detach().cpu()
    return np.asarray(scores)
