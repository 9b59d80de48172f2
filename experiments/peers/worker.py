"""A process in which others' membership attacks run on scores that ours are run on, in an environment of their own.

    python worker.py SCORES.npz FOLDER [--leakpro CHECKOUT] [--privacy-meter CHECKOUT]

Prints one JSON list: for each attack its tool, the tool's version, its name and its AUC, or the reason why it did not
run. Members come first in every array. A tool that asks a model for what it needs is given one that looks the answers
up; what it imports for other purposes and is not there (tensorflow, torchvision ...) is stood in for by empty modules.
"""

import argparse
import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import json
import logging
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

SMALLEST = 1e-45
ABSENT = (
    *("tensorflow", "torchvision", "transformers", "sentence_transformers", "torchmetrics", "ignite", "albumentations"),
    *("kornia", "blobfile", "lpips", "robustness", "mpi4py"),
)

Arrays = dict[str, Any]
Row = dict[str, Any]


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Empty modules for what tools import on the way, but do not use here."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        known = name.partition(".")[0] in ABSENT
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if known else None

    def exec_module(self, module: types.ModuleType) -> None:
        module.__getattr__ = _anything  # type: ignore[method-assign]


def _anything(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return object


def logits(scores: Any) -> Any:
    return np.log(np.maximum(scores, SMALLEST))


# ART


def art(given: Arrays) -> Iterator[tuple[str, float]]:
    inference = importlib.import_module("art.attacks.inference.membership_inference")
    estimators = importlib.import_module("art.estimators.classification")
    classes = given["target"].shape[1]
    classifier = estimators.BlackBoxClassifier(lambda x: x, (classes,), classes)
    for kind in ("rf", "gb", "nn", "lr", "knn"):
        attack = inference.MembershipInferenceBlackBox(classifier, attack_model_type=kind)
        side = given["shadow_member"]
        attack.fit(
            pred=given["shadow"][side], y=given["shadow_labels"][side],
            test_pred=given["shadow"][~side], test_y=given["shadow_labels"][~side],
        )  # fmt: skip
        said = attack.infer(None, given["labels"], pred=given["target"], probabilities=True)
        said = np.asarray(said)
        said = said[:, 1] if said.ndim == 2 and said.shape[1] == 2 else said.ravel()
        yield f"black box, {kind}", float(roc_auc_score(given["member"], said))


# LeakPro


class LeakProHandler:
    """What LeakPro asks of its input: who is who, and a model. All logits are known already."""

    def __init__(self, given: Arrays, population: int) -> None:
        torch = importlib.import_module("torch")
        audited = np.arange(len(given["member"]))
        self.train_indices, self.test_indices = audited[given["member"]], audited[~given["member"]]
        self.labels = np.concatenate([given["labels"], given["population_labels"]])
        self.population = np.arange(len(audited) + population)
        self.population_size = len(self.population)
        self.target_model = LookUp.module(torch, logits(np.vstack([given["target"], given["population"]])))
        self._torch = torch

    def get_criterion(self) -> Any:
        return self._torch.nn.CrossEntropyLoss()

    def get_labels(self, index: Any) -> Any:
        return self.labels[index]

    def get_dataloader(self, index: Any, shuffle: bool = False) -> Any:
        rows = self._torch.tensor(np.asarray(index)), self._torch.tensor(self.labels[index])
        data = self._torch.utils.data
        records = data.TensorDataset(*rows)
        records.targets = rows[1]
        return data.DataLoader(records, batch_size=1024, shuffle=shuffle)


class LookUp:
    """A model whose input is the number of a record."""

    @staticmethod
    def module(torch: Any, table: Any) -> Any:
        class Module(torch.nn.Module):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("table", torch.tensor(table))

            def forward(self, rows: Any) -> Any:
                return self.table[rows.long()]

        return Module()


class LeakProShadows:
    """LeakPro's handler of shadow models, with ours, which are trained already."""

    target_model_hash = "ours"

    def __init__(self, given: Arrays, folder: Path, handler: LeakProHandler) -> None:
        torch, signals = importlib.import_module("torch"), importlib.import_module("leakpro.signals.signal_extractor")
        self.attack_cache_folder_path = str(folder)
        self._given = given
        every = np.concatenate([given["of_records"], given["of_population"]], axis=1)
        self._models = [
            signals.PytorchModel(LookUp.module(torch, logits(table)), handler.get_criterion()) for table in every
        ]

    def create_shadow_models(self, num_models: int, **_: Any) -> list[int]:
        return list(range(num_models))

    def get_shadow_models(self, index: list[int]) -> tuple[list[Any], list[int]]:
        return [self._models[i] for i in index], index

    def get_in_indices_mask(self, index: list[int], records: Any) -> Any:
        return self._given["inside"][index][:, records].T

    def load_logits(self, name: str = "", indx: int | None = None) -> Any:
        return logits(self._given["target"] if indx is None else self._given["of_records"][indx])


def leakpro(given: Arrays, folder: Path) -> Iterator[tuple[str, float]]:
    handler = LeakProHandler(given, len(given["population"]))
    shadows = LeakProShadows(given, folder, handler)
    logging.getLogger("leakpro_log").setLevel(logging.ERROR)
    np.random.seed(0)  # noqa: NPY002 - it draws from numpy's own
    many = {"num_shadow_models": len(given["inside"])}
    online, offline = {**many, "online": True}, {**many, "online": False}
    attacks: list[tuple[str, str, str, dict[str, Any]]] = [
        ("LiRA, online", "lira", "AttackLiRA", online),
        ("LiRA, offline", "lira", "AttackLiRA", offline),
        ("RMIA, online", "rmia", "AttackRMIA", online),
        ("RMIA, offline", "rmia", "AttackRMIA", offline),
        ("BASE, online", "base", "AttackBASE", online),
        ("BASE, offline", "base", "AttackBASE", offline),
        ("population", "attack_p", "AttackP", {}),
    ]
    for name, file, kind, configs in attacks:
        module: Any = importlib.import_module(f"leakpro.attacks.mia_attacks.{file}")
        module.ShadowModelHandler = lambda: shadows
        attack = getattr(module, kind)(handler, configs)
        attack.prepare_attack()
        result = attack.run_attack()
        yield name, area(result.fpr, result.tpr)


# Privacy Meter


def privacy_meter(given: Arrays) -> Iterator[tuple[str, float]]:
    """The metrics of the package."""
    metrics, sources, tests, signals, datasets, models = (
        importlib.import_module(f"privacy_meter.{name}")
        for name in ("metric", "information_source", "hypothesis_test", "information_source_signal", "dataset", "model")
    )

    class Loss(models.Model):  # type: ignore[misc,name-defined]
        """Its inputs are score vectors."""

        def get_loss(self, rows: Any, labels: Any, per_point: bool = True) -> Any:
            return -logits(rows)[np.arange(len(labels)), labels]

        get_logits = get_grad = get_intermediate_outputs = get_loss

    def source(count: int, tables: list[dict[str, tuple[Any, Any]]]) -> Any:
        parts = [
            datasets.Dataset(
                {name: {"x": x, "y": y, "g": y} for name, (x, y) in table.items()}, "x", "y", default_group="g"
            )
            for table in tables
        ]
        return sources.InformationSource([Loss(None, None)] * count, parts)

    member, labels = given["member"], given["labels"]
    halves = {"train": member, "test": ~member}
    target = source(1, [{name: (given["target"][side], labels[side]) for name, side in halves.items()}])
    population = source(1, [{"train": (given["population"], given["population_labels"])}])
    threshold, loss = tests.linear_itp_threshold_func, [signals.ModelLoss()]
    for name, kind in (("population", "PopulationMetric"), ("population by class", "GroupPopulationMetric")):
        metric = getattr(metrics, kind)(target, population, loss, threshold)
        metric.prepare_metric()
        yield name, auc_of(metric.run_metric())
    # reference models have not seen the record: of each record, take the shadows that have not
    unseen = np.argsort(given["inside"], axis=0, kind="stable")[: (~given["inside"]).sum(axis=0).min()]
    outside = [given["of_records"][rows, np.arange(len(labels))] for rows in unseen]

    def mapping(name: str) -> list[tuple[int, str, str, str]]:
        return [(i, name, "<default_input>", "<default_output>") for i in range(len(outside))]

    class Reference(metrics.ReferenceMetric):  # type: ignore[misc,name-defined]
        """Its constructor reads these two, and sets them only where they are not given."""

        reference_model_to_train_split_mapping = mapping("train")
        reference_model_to_test_split_mapping = mapping("test")

    splits = [{name: (rows[side], labels[side]) for name, side in halves.items()} for rows in outside]
    metric = Reference(
        target,
        source(len(outside), splits),
        loss,
        threshold,
        reference_model_to_train_split_mapping=mapping("train"),
        reference_model_to_test_split_mapping=mapping("test"),
    )
    metric.prepare_metric()
    yield "reference models", auc_of(metric.run_metric())


def auc_of(results: Any) -> float:
    (result,) = results
    return area(result.fp / (result.fp + result.tn), result.tp / (result.tp + result.fn))


def area(fpr: Any, tpr: Any) -> float:
    """Under the curve through a tool's rates, with both ends, which some leave out."""
    order = np.lexsort((tpr, fpr))
    across, up = (np.concatenate([[0.0], np.asarray(rate)[order], [1.0]]) for rate in (fpr, tpr))
    return float(np.trapezoid(up, across))


def privacy_meter_rmia(given: Arrays) -> Iterator[tuple[str, float]]:
    """Of the repository: RMIA, which finds its own coefficient by attacking one of the shadows."""
    own: Any = importlib.import_module("modules.mia")

    def true_class(scores: Any, labels: Any) -> Any:
        return scores[:, np.arange(len(labels)), labels].T  # (records, models)

    every = np.concatenate([given["target"][None], given["of_records"]])
    of_population = np.concatenate([given["population"][None], given["of_population"]])
    signals, z = true_class(every, given["labels"]), true_class(of_population, given["population_labels"])
    memberships = np.column_stack([given["member"], given["inside"].T])
    logger = logging.getLogger("privacy meter")
    attack = own.MIA(logger)
    references = np.arange(2, signals.shape[1])  # the first shadow is the one attacked to find the coefficient
    scores, _ = attack.run_mia(
        signals, memberships, 0, references, logger, {"attack": "RMIA", "dataset": "", "model": ""}, z
    )
    yield "RMIA", float(roc_auc_score(given["member"], scores))


def rows_of(tool: str, version: Callable[[], str], attacks: Callable[[], Iterator[tuple[str, float]]]) -> list[Row]:
    found: list[Row] = []
    try:
        for attack, auc in attacks():
            found.append({"tool": tool, "version": version(), "attack": attack, "auc": round(auc, 4)})
    except Exception as error:
        found.append({"tool": tool, "reason": f"{type(error).__name__}: {error}"[:300]})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scores", type=Path)
    parser.add_argument("folder", type=Path, help="for what tools write")
    parser.add_argument("--leakpro", type=Path)
    parser.add_argument("--privacy-meter", type=Path)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    given = dict(np.load(asked.scores))
    found: list[Row] = []
    with contextlib.redirect_stdout(sys.stderr):  # what a tool prints is no answer
        packaged = importlib.metadata.version
        found += rows_of("ART", lambda: packaged("adversarial-robustness-toolbox"), lambda: art(given))
        sys.meta_path.append(StandIns())  # the last that is asked
        if asked.leakpro is not None:
            sys.path.insert(0, str(asked.leakpro))
            found += rows_of("LeakPro", lambda: "checkout", lambda: leakpro(given, asked.folder))
        found += rows_of("Privacy Meter", lambda: packaged("privacy-meter"), lambda: privacy_meter(given))
        if asked.privacy_meter is not None:
            sys.path.insert(0, str(asked.privacy_meter))
            found += rows_of("Privacy Meter", lambda: "checkout", lambda: privacy_meter_rmia(given))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
