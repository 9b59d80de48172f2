"""A configuration with the veils that it names: read once, when it is opened; everything after uses what was read.

config = config_file.load(path)       # plain data
opened = open_config(config)          # with its veils; small enough to travel to the workers
model = load_model(opened.models[…])  # with the model itself, where the gateway runs it
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs

from scoreveil import accounting, shapes
from scoreveil.gateway import embedded_model, probabilities
from scoreveil.gateway.config import Config, ConfigError, Memory, Model
from scoreveil.gateway.embedded_model import EmbeddedModel
from scoreveil.inference_protocol.tensors import DTYPES, Array, TensorSpec
from scoreveil.ledger import LedgerUnavailable
from scoreveil.ledger.releases import MAX_UNITS
from scoreveil.same_record.typical import typical_inputs
from scoreveil.shapes import VECTORS, Shape
from scoreveil.veil import Veil

BILLION = 10**9  # units of the ledger in an ε
NO_KEYS = "Clients have no keys, so anyone can use up the answers that records have; set auth.mode."
NO_EPSILON = (
    "memory means nothing without an ε: the veil answers the same however often it is asked. Remove memory, or use a "
    "veil with ε."
)


@dataclass(frozen=True)
class OpenedModel:
    """A model's settings with the veil that they name."""

    name: str
    settings: Model
    veil: Veil | None = None  # without a secret; None where texts pass
    shape: Shape = VECTORS  # of answers: the veil's, for as many axes as they have
    releases: int | None = 0  # score vectors of a record in each output; None where only the model itself can tell
    scores: tuple[str, ...] = ()  # outputs that are veiled, by the model's own names
    memory: Memory | None = None
    typical: Array | None = None  # inputs as clients send them
    embedded: EmbeddedModel | None = None

    @property
    def answer_releases(self) -> int | None:
        """Score vectors that a whole answer about one record holds; None where only the model itself can tell."""
        return None if self.releases is None else self.releases * len(self.scores)

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return self.settings.inputs if self.embedded is None else self.embedded.inputs

    @property
    def needs_secret(self) -> bool:
        """Whether answers are drawn, or records remembered. A fitted veil without ε is a function of the scores."""
        if self.veil is None:
            return False
        mechanism = self.veil.mechanism
        return self.memory is not None or mechanism.classes is None or mechanism.draws(mechanism.classes) > 0

    @property
    def unit(self) -> str:
        """What the ledger counts a record's releases in: ε, or ρ under the rule "zcdp"."""
        return "rho" if self.memory is not None and self.memory.rule == "zcdp" else "epsilon"

    def keyed_veils(self, secret: bytes | None) -> dict[str, Veil]:
        """The veil of each output of scores, whose answers are independent of the others'."""
        veil = self.veil
        if veil is None:
            return {}
        return {
            score: Veil(
                veil.mechanism,
                shape=veil.shape,
                secret=secret,
                model=f"{self.name}/{self.settings.version}/{score}",
                smoothing=veil.smoothing,
            )
            for score in self.scores
        }

    def allowed_answers(self, releases: int) -> int:
        """How many fresh answers about one record there are, each of so many releases; 0 without memory."""
        memory = self.memory
        if memory is None or self.veil is None:
            return 0
        if memory.epsilon is None:
            return memory.answers or 0
        return accounting.query_bound(self.veil.guarantee, memory.epsilon, memory.rule, memory.delta) // releases

    def price(self, releases: int) -> int:
        """What an answer of so many releases costs its record, in billionths of the unit."""
        assert self.veil is not None
        promise = self.veil.guarantee
        return _billionths((promise.rho if self.unit == "rho" else promise.epsilon) * releases)

    def client_price(self, releases: int) -> int:
        """What it costs the client: ε, in billionths."""
        assert self.veil is not None
        return _billionths(self.veil.guarantee.epsilon * releases)

    def memory_words(self) -> str:
        """What becomes of a record that is asked about again."""
        memory = self.memory
        if memory is None:
            return "the same question always gets the same answer; nothing is remembered"
        then = "the last one again" if memory.repeat == "same" else "none"
        if memory.answers is not None:
            count = "one answer" if memory.answers == 1 else f"{memory.answers} answers"
        else:
            count = f"answers of {'ρ' if self.unit == 'rho' else 'ε'} = {memory.epsilon:g} in all"
        return f"{count} for a record and its near-duplicates, then {then}"


@dataclass(frozen=True)
class OpenedConfig:
    """A configuration, and its models with their veils."""

    config: Config
    models: Mapping[str, OpenedModel]

    @property
    def has_memory(self) -> bool:
        """Whether a ledger is needed."""
        return any(model.memory is not None for model in self.models.values())

    @property
    def needs_secret(self) -> bool:
        return any(model.needs_secret for model in self.models.values())

    @property
    def warnings(self) -> tuple[str, ...]:
        """What whoever runs the gateway should know."""
        config = self.config
        return (NO_KEYS,) if self.has_memory and not config.has_keys and not config.server.local else ()


@contextmanager
def errors_at(place: str) -> Iterator[None]:
    """Whatever cannot be opened is an error of the configuration, which names the place."""
    try:
        yield
    except OSError as error:
        shown = f"{error.strerror or type(error).__name__}{f': {error.filename}' if error.filename else ''}"
        raise ConfigError(f"{place}: {shown}.") from None
    except (ValueError, ModuleNotFoundError) as error:
        raise ConfigError(f"{place}: {error}") from None
    except LedgerUnavailable:
        raise ConfigError(f"{place}: it does not answer, or is not a ledger.") from None
    except Exception as error:  # of libraries that read files; what they say may quote them
        raise ConfigError(f"{place}: what it names cannot be opened ({type(error).__name__}).") from None


def check_files(*named: object) -> None:
    """Refuse what is there and no file: a pipe would be waited for, and some devices never end."""
    for path in named:
        if isinstance(path, Path) and path.exists() and not path.is_file():
            raise ValueError(f"{path} is not a file.")


def open_config(config: Config) -> OpenedConfig:
    """Read the veils of all models.

    Raises:
        ConfigError: A veil cannot be read, or is not what its model's table says.
    """
    models = {}
    for name, settings in config.models.items():
        with errors_at(f"models.{name}"):
            models[name] = _open_model(name, settings)
    opened = OpenedConfig(config, models)
    if config.limits_clients and not opened.has_memory:
        raise ConfigError("limits.epsilon counts answers of models with memory; none has one")
    return opened


def load_model(opened: OpenedModel) -> OpenedModel:
    """With the model itself, if the gateway runs it; its outputs tell what the file leaves open.

    Raises:
        ValueError: The model cannot be read, or its outputs are not what the configuration says.
    """
    veil = opened.veil
    if opened.settings.upstream is not None or veil is None:
        return opened
    embedded = embedded_model.load(opened.settings, veil.shape)
    _check_smoothing(veil, embedded.inputs)
    for name in embedded.scores:
        spec = probabilities.declared(embedded.outputs[name], veil.shape)
        embedded.outputs[name] = spec
        if spec.shape[-1] > 0 and (spec.shape[-1] > 1 or not veil.shape.is_plain):
            _check_classes(veil, spec)
    specs = [embedded.outputs[score] for score in embedded.scores]
    shape, releases = opened.shape, opened.releases
    if opened.settings.releases is None:
        shape = veil.shape.of(max(len(spec.shape) for spec in specs))
        if shape.holds_several:
            releases = _releases(structs.replace(opened.settings, releases=_counted(shape, specs)), veil, shape)
    opened = replace(opened, embedded=embedded, scores=embedded.scores, shape=shape, releases=releases)
    check_memory(opened, opened.answer_releases or 1)
    return opened


def check_memory(opened: OpenedModel, releases: int) -> None:
    """Refuse memory that allows no answer of so many releases, and what cannot be counted."""
    if opened.memory is None:
        return
    if opened.allowed_answers(releases) < 1:
        held = "" if releases == 1 else f" An answer holds {releases} releases."
        epsilon = opened.memory.epsilon or 0.0
        raise ConfigError(f"memory.epsilon = {epsilon:g} allows no answer; raise it, or lower ε.{held}")
    opened.client_price(releases)


def _open_model(name: str, settings: Model) -> OpenedModel:
    if not settings.is_veiled:
        return OpenedModel(name, settings)
    veil = _read_veil(settings)
    shape = _with_axes(settings, veil.shape)
    opened = OpenedModel(name, settings, veil, shape, _releases(settings, veil, shape), settings.scores)
    if opened.releases is None and settings.upstream is not None:
        raise ConfigError("releases is missing: in front of a server, say how many labels or places a record has.")
    memory = settings.memory
    if not math.isfinite(veil.guarantee.epsilon):
        if memory is not None:
            raise ConfigError(NO_EPSILON)
    elif memory is None and settings.knows_records and not veil.mechanism.is_fitted:
        # it promises nothing about a record that is asked about again and again, so such a record is answered once
        memory = Memory(answers=1)
    typical = None
    if memory is not None and memory.typical is not None:
        check_files(memory.typical)
        typical = typical_inputs(memory.typical)
    opened = replace(opened, memory=memory, typical=typical)
    check_memory(opened, opened.answer_releases or 1)
    if settings.upstream is not None:
        _check_smoothing(veil, settings.inputs)
    return opened


# Veils


def _read_veil(settings: Model) -> Veil:
    """The veil of one output, without a secret."""
    check_files(*settings.veil.values())
    if "veil" in settings.veil:
        fitted = Veil.load(settings.veil["veil"])
        shape = _served_shape(settings, fitted)
        if fitted.smoothing is not None and (settings.is_language or not _with_axes(settings, shape).can_smooth):
            raise ConfigError(
                "the veil was fitted on smoothed scores; texts, lists of the largest scores and scores of places "
                "cannot be smoothed"
            )
        return Veil(fitted.mechanism, shape=shape, smoothing=fitted.smoothing)
    options: dict[str, Any] = {
        option: np.load(value, allow_pickle=False) if isinstance(value, Path) else value
        for option, value in settings.veil.items()
    }
    try:
        return Veil(**options, shape=_named_shape(settings))
    except TypeError as error:
        words = "a key is missing, or is one of neither the gateway nor the veil"
        raise ConfigError(f"{words} ({error}).") from None


def _with_axes(settings: Model, shape: Shape) -> Shape:
    """The shape of answers that hold as many releases as the table says: vectors have several at places."""
    return shape.of(2 if settings.releases is None else 3)


def _named_shape(settings: Model) -> Shape:
    """The shape that the table names."""
    if settings.shape is None:
        return VECTORS
    return shapes.make(settings.shape, threshold=settings.threshold, classes=settings.classes)


def _served_shape(settings: Model, fitted: Veil) -> Shape:
    """The shape that a saved veil brings; one that was fitted on whole vectors takes lists of the largest too."""
    classes, named, own = fitted.mechanism.classes, _named_shape(settings), fitted.shape
    if named.is_list and own.is_plain and classes is not None:
        if settings.classes not in (None, classes):
            raise ConfigError(f"the veil was fitted for {classes} classes, and classes is another number")
        if settings.outputs == "logits":
            raise ConfigError("logits of a list do not tell what the rest has; serve probabilities")
        return shapes.make(named.name, classes=classes)
    if settings.shape is not None:
        stated = [key for key in ("threshold", "classes") if getattr(settings, key) is not None]
        same = own.name == named.name and all(own.settings()[key] == named.settings()[key] for key in stated)
        if not same:
            raise ConfigError(f"the veil was fitted for {_shape_words(own)}")
    if own.takes_logits and settings.outputs != "logits":
        raise ConfigError('the veil takes logits; say outputs = "logits"')
    return own


def _shape_words(shape: Shape) -> str:
    if shape.is_plain:
        return "score vectors; remove shape"
    stated = ", ".join(f"{name} = {value}" for name, value in shape.settings().items())
    return f"scores of another shape ({stated}); remove shape, threshold and classes, which it brings"


# How much an answer holds


def _releases(settings: Model, veil: Veil, shape: Shape) -> int | None:
    """Score vectors of one record in each output, as far as the file tells."""
    if not shape.holds_several:
        if settings.releases is not None:
            raise ConfigError("releases is for many labels, or for a vector at each of several places")
        return 1
    labels = veil.mechanism.together if veil.mechanism.together > 1 else shape.labels  # as fitted, or as thresholds
    if not shape.has_labels or labels is None:
        return settings.releases
    if settings.releases not in (None, labels):
        raise ConfigError(f"the veil is for {labels} labels, and releases is another number")
    return labels


def _counted(shape: Shape, specs: list[TensorSpec]) -> int:
    """The same, as the outputs declare it."""
    what, sizes = "labels" if shape.has_labels else "places", {shape.counted(spec.shape) for spec in specs}
    if len(sizes) > 1:
        names = ", ".join(spec.name for spec in specs)
        raise ValueError(f"{names} hold different numbers of {what}; serve each by itself.")
    (counts,) = sizes
    if min(counts, default=0) < 1:
        raise ValueError(f"the model does not say how many {what} an answer holds; say so, releases = ….")
    return math.prod(counts)


def _check_classes(veil: Veil, spec: TensorSpec) -> None:
    """Refuse now, not later, a shape that the model does not have, and a veil for other classes."""
    sizes = (1, *(max(1, size) for size in spec.shape[1:]))
    (vectors,) = veil.vectors(veil.shape.of(len(sizes)).even(sizes))
    Veil(veil.mechanism)(vectors[: veil.mechanism.together])


def _check_smoothing(veil: Veil, inputs: tuple[TensorSpec, ...]) -> None:
    """Refuse at start, not at each request, a veil for smoothed scores of a model with other inputs."""
    sizes = [size for spec in inputs for size in spec.shape[1:]]
    if veil.smoothing is not None and inputs and min(sizes, default=1) > 0:
        veil.smoothing.around({spec.name: np.empty((0, *spec.shape[1:]), DTYPES[spec.datatype]) for spec in inputs})


def _billionths(amount: float) -> int:
    """Rounded up, as decimals: 0.1 is exactly a tenth."""
    units = max(1, math.ceil(Fraction(repr(float(amount))) * BILLION))
    if units > MAX_UNITS:
        most = MAX_UNITS // BILLION
        raise ConfigError(f"an answer would spend {amount:g}, and the ledger counts up to {most:,} for a record")
    return units
