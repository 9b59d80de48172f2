"""MLflow: a pyfunc flavour whose models answer with veiled scores.

    from scoreveil.integrations.mlflow import load_model, log_model

    info = log_model(classifier, epsilon=2.0, name="veiled")
    load_model(info.model_uri).predict(records)        # (n, k); so does mlflow models serve

A secret is no part of a model's files: where the model is loaded, SCOREVEIL_SECRET_FILE names a file that holds it,
for sticky answers.
"""

import os
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Unpack

from numpy.typing import NDArray

from scoreveil import secret_file
from scoreveil.extras import needs
from scoreveil.integrations.records import RecordVeil
from scoreveil.mechanisms.mechanism import Mechanism
from scoreveil.tables.label_columns import asked_scores
from scoreveil.veil import Veil, VeilOptions

with needs("mlflow"):
    import mlflow.pyfunc


class VeiledModel(mlflow.pyfunc.PythonModel):
    """What is stored and served: a classifier and its veil."""

    def __init__(self, classifier: Any, epsilon: float | Mechanism | Veil, **options: Unpack[VeilOptions]) -> None:
        if not hasattr(classifier, "predict_proba"):
            raise ValueError(f"Expected a classifier with predict_proba, got {type(classifier).__name__} without.")
        veil = Veil.from_given(epsilon, **options)
        if veil.is_keyed:
            raise ValueError(
                f"A stored model has no secret: give none here, and name its file in {secret_file.VARIABLE} where the "
                "model is loaded."
            )
        self._classifier, self._veil = classifier, RecordVeil(veil)

    def load_context(self, context: Any) -> None:
        """Key the answers, where a secret file is named."""
        if secret_file.VARIABLE in os.environ:
            self._veil = RecordVeil(self._veil.veil.with_secret(Path(os.environ[secret_file.VARIABLE])))

    def predict(self, context: Any, model_input, params: dict[str, Any] | None = None) -> NDArray[Any]:  # type: ignore[no-untyped-def]  # a type would make MLflow convert what comes
        """Veiled scores, one row a record. There are no parameters."""
        return self._veil(self._veil.smoothed(self._ask(model_input), self._ask, model_input), [model_input])

    def _ask(self, records: Any) -> NDArray[Any]:
        """Raw scores."""
        answer = self._classifier.predict_proba(records)
        return asked_scores(answer, self._veil.veil.shape, getattr(self._classifier, "classes_", None))


def save_model(
    classifier: Any,
    epsilon: float | Mechanism | Veil,
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
    epsilon: float | Mechanism | Veil,
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


def _requirements(classifier: Any) -> list[str]:
    """This package and the one the classifier comes from, as installed: no need to load the model to find out."""
    package = type(classifier).__module__.partition(".")[0]
    names = {"scoreveil", *metadata.packages_distributions().get(package, [])}
    return [f"{name}=={metadata.version(name)}" for name in sorted(names)]
