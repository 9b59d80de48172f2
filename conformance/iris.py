"""A small classifier for a server to serve, and the raw scores to hold its answers against.

python iris.py mlserver|mlflow FOLDER
"""

import json
import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression


def main(kind: str, folder: Path) -> None:
    data, labels = load_iris(return_X_y=True)
    x = data.astype(np.float32)
    model = LogisticRegression(max_iter=500).fit(x, labels)
    np.save(folder / "x.npy", x)
    np.save(folder / "raw.npy", model.predict_proba(x))
    if kind == "mlserver":
        import joblib

        joblib.dump(model, folder / "model.joblib")
        settings = {"name": "iris", "implementation": "mlserver_sklearn.SKLearnModel"}
        settings["parameters"] = {"uri": "./model.joblib", "version": "v1"}
        (folder / "model-settings.json").write_text(json.dumps(settings))
    else:
        import mlflow
        import pandas as pd

        example = pd.DataFrame(x[:2], columns=["a", "b", "c", "d"])
        mlflow.sklearn.save_model(model, folder / "model", pyfunc_predict_fn="predict_proba", input_example=example)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
