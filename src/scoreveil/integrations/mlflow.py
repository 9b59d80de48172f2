"""MLflow: a pyfunc flavour whose models answer with veiled scores.

    from scoreveil.integrations.mlflow import load_model, log_model

    info = log_model(classifier, epsilon=2.0, name="veiled", reference=holdout_scores)
    load_model(info.model_uri).predict(records)        # (n, k); so does mlflow models serve

A secret is no part of a model's files: where the model is loaded, SCOREVEIL_SECRET_FILE names a file that holds it,
for sticky answers.
"""

import os
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Unpack

import mlflow.pyfunc
import numpy as np
from numpy.typing import NDArray

from scoreveil.integrations.options import VeilOptions
from scoreveil.integrations.records import RecordVeil
from scoreveil.veil import Settings, Veil

SECRET_FILE = "SCOREVEIL_SECRET_FILE"


class VeiledModel(mlflow.pyfunc.PythonModel):
    """What is stored and served: a classifier, and the settings and reference of its veil."""

    def __init__(self, classifier: Any, epsilon: float | Settings, **options: Unpack[VeilOptions]) -> None:
        if not hasattr(classifier, "predict_proba"):
            raise ValueError(f"Expected a classifier with predict_proba, got {type(classifier).__name__}.")
        if options.get("secret") is not None:
            raise ValueError(
                f"Expected no secret in a stored model, got one: {SECRET_FILE} names it where it is loaded."
            )
        veil = Veil(epsilon, **options)
        self._classifier = classifier
        self._made_from = (veil.settings, VeilOptions(reference=veil.reference, model=veil.model))
        self._veil: RecordVeil | None = None

    def load_context(self, context: Any) -> None:
        settings, options = self._made_from
        path = os.environ.get(SECRET_FILE)
        self._veil = RecordVeil(settings, **options, secret=None if path is None else _secret(Path(path)))  # type: ignore[misc]

    def predict(self, context: Any, model_input, params: dict[str, Any] | None = None) -> NDArray[Any]:  # type: ignore[no-untyped-def]  # a type would make MLflow convert what comes
        """Veiled scores, one row a record. There are no parameters."""
        if self._veil is None:
            self.load_context(context)
        assert self._veil is not None
        return self._veil(np.asarray(self._classifier.predict_proba(model_input)), [model_input])

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_veil": None}  # made where it is loaded, with the secret that is there


def save_model(
    classifier: Any,
    epsilon: float | Settings,
    path: str | os.PathLike[str],
    *,
    input_example: Any = None,
    pip_requirements: Sequence[str] | None = None,
    **options: Unpack[VeilOptions],
) -> None:
    """Write a veiled classifier as an MLflow model; further options as in `Veil`."""
    mlflow.pyfunc.save_model(
        path=str(path),
        python_model=VeiledModel(classifier, epsilon, **options),
        input_example=input_example,
        pip_requirements=list(pip_requirements or _requirements(classifier)),
    )


def log_model(
    classifier: Any,
    epsilon: float | Settings,
    *,
    name: str,
    input_example: Any = None,
    registered_model_name: str | None = None,
    pip_requirements: Sequence[str] | None = None,
    **options: Unpack[VeilOptions],
) -> Any:
    """Log a veiled classifier in the current run; what is returned has its `model_uri`."""
    return mlflow.pyfunc.log_model(
        name=name,
        python_model=VeiledModel(classifier, epsilon, **options),
        input_example=input_example,
        registered_model_name=registered_model_name,
        pip_requirements=list(pip_requirements or _requirements(classifier)),
    )


def load_model(model_uri: str) -> Any:
    """The model as MLflow's pyfunc: `predict` answers with veiled scores."""
    return mlflow.pyfunc.load_model(model_uri)


def _secret(path: Path) -> bytes:
    if not path.is_file():
        raise ValueError(f"Expected a file with a secret in {SECRET_FILE}, got no such file: {path}.")
    return path.read_bytes().strip()


def _requirements(classifier: Any) -> list[str]:
    """This package and the one the classifier comes from, as installed: no need to load the model to find out."""
    package = type(classifier).__module__.partition(".")[0]
    names = {"scoreveil", *metadata.packages_distributions().get(package, [])}
    return [f"{name}=={metadata.version(name)}" for name in sorted(names)]
