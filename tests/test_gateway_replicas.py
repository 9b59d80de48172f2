"""Replicas: gateways that know nothing of each other, on one PostgreSQL ledger, keep one budget."""

import concurrent.futures
import contextlib
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from gateway_servers import gateway, scores_of

RELEASES = 5
PIXELS = load_digits().data.astype(np.float32)


def test_three_gateways_on_one_ledger_grant_exactly_b(tmp_path: Path, postgres_url: str) -> None:
    from skl2onnx import to_onnx

    classifier = LogisticRegression(C=1e-4, max_iter=50, tol=0.1).fit(*load_digits(return_X_y=True))
    made = to_onnx(classifier, PIXELS[:1], options={"zipmap": False}, target_opset=17)
    (tmp_path / "digits.onnx").write_bytes(made.SerializeToString())
    (tmp_path / "secret").write_text("0123456789abcdef" * 4 + "\n")
    (tmp_path / "secret").chmod(0o600)
    toml = f"""
    secrets.file = "{tmp_path}/secret"
    ledger.url = "{postgres_url}"
    [models.m]
    onnx = "{tmp_path}/digits.onnx"
    epsilon = 0.5
    repeats = "budget"
    total = {0.5 * RELEASES}
    """
    with contextlib.ExitStack() as stack:
        replicas = [stack.enter_context(gateway(tmp_path / name, toml)) for name in ("a", "b", "c")]
        asks = [(replica, i % 2) for i in range(10) for replica in replicas]  # two records, thirty times in all
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            answers = list(pool.map(lambda ask: ask[0].infer(PIXELS[ask[1] : ask[1] + 1], "m", "X"), asks))
        for record in (0, 1):
            statuses = [answer[0] for (_, asked), answer in zip(asks, answers, strict=True) if asked == record]
            assert statuses.count(200) == RELEASES
            assert statuses.count(429) == len(statuses) - RELEASES
        granted = [scores_of(answer) for answer in answers if answer[0] == 200]
        assert len({each.argmax() for each in granted}) <= 2, "one label a record"
