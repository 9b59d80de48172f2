"""The gateway as a process: it drains, reloads under load, and speaks TLS to those with a token."""

import base64
import concurrent.futures
import contextlib
import datetime
import hashlib
import hmac
import ipaddress
import json
import os
import signal
import ssl
import subprocess
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from gateway_servers import PIXELS, SCOREVEIL, SLOW, Answer, Gateway, free_ports, gateway, until
from scoreveil import fit
from shaped_models import two_sides

pytestmark = pytest.mark.slow


def test_sigterm_drains_without_dropping_a_request(tmp_path: Path) -> None:
    (tmp_path / "slow_model.py").write_text(SLOW)
    toml = '[models.slow]\npython = "slow_model:make"\nepsilon = 1.0\n'
    with gateway(
        tmp_path, toml, "--workers", "2", PYTHONPATH=f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    ) as server:
        with concurrent.futures.ThreadPoolExecutor(2) as pool:  # as many as one worker answers at a time
            under_way = [pool.submit(server.infer, np.float32([[i, 1.0]]), "slow") for i in range(2)]

            def refused(each: concurrent.futures.Future[Answer]) -> bool:
                return each.done() and (each.exception() is not None or each.result()[0] != 200)

            # one that is refused ends the wait, and is told below; the first may be answered before the second begins
            until(lambda: len(list(tmp_path.glob("begun-*"))) >= 2 or any(map(refused, under_way)))
            assert server.stop() == 0
            assert [each.result()[0] for each in under_way] == [200] * 2
        assert not server.listening()


def test_sighup_reloads_while_requests_run(tmp_path: Path, models: Path) -> None:
    """Settings and secrets change under load; not one request fails, and a file that does not hold changes nothing."""
    toml = f'[models.digits]\nonnx = "{models}/digits.onnx"\nepsilon = 2.0\n'
    with gateway(tmp_path, toml, "--workers", "2") as server:
        stop, failures, answers = threading.Event(), [], []

        def load() -> None:
            while not stop.is_set():
                status, _, body = server.infer(PIXELS[:40], name="X")
                (answers if status == 200 else failures).append(body)

        with concurrent.futures.ThreadPoolExecutor(2) as pool, contextlib.ExitStack() as at_end:
            at_end.callback(stop.set)
            running = [pool.submit(load) for _ in range(2)]
            before = server.infer(PIXELS[:40], name="X")[2]
            server.config.write_text("[models.digits]\nepsilon = -1\n")
            server.process.send_signal(signal.SIGHUP)
            server.wait_for("reload_failed")
            assert server.infer(PIXELS[:40], name="X")[2] == before
            server.config.write_text(toml)
            rotate = [str(SCOREVEIL), "config", "rotate", str(server.config)]
            assert "2 secrets" in subprocess.run(rotate, capture_output=True, text=True, check=True).stdout
            assert server.infer(PIXELS[:40], name="X")[2] == before  # until the reload the old one counts
            server.process.send_signal(signal.SIGHUP)
            server.wait_for("reloaded", 2)
            after = {server.infer(PIXELS[:40], name="X")[2] for _ in range(10)}
            stop.set()
            for each in running:
                each.result()
        assert not failures
        assert len(after) == 1
        assert before not in after
        assert set(answers) <= {before, *after}
        assert oct((tmp_path / "scoreveil.secret").stat().st_mode & 0o777) == "0o600"


def certificate(folder: Path) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1, and its key."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    made = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(made.public_key())
    builder = builder.serial_number(1).not_valid_before(now).not_valid_after(now + datetime.timedelta(days=2))
    signed = builder.add_extension(address, critical=False).sign(made, hashes.SHA256())
    cert.write_bytes(signed.public_bytes(Encoding.PEM))
    key.write_bytes(made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return cert, key


def token(secret: bytes, **claims: Any) -> str:
    """A JWT made by hand, so that the tests do not trust the library they test."""

    def encoded(part: Any) -> bytes:
        return base64.urlsafe_b64encode(part if isinstance(part, bytes) else json.dumps(part).encode()).rstrip(b"=")

    head = claims.pop("head", {"alg": "HS256", "typ": "JWT"})
    signed = encoded(head) + b"." + encoded(claims)
    return (signed + b"." + encoded(hmac.digest(secret, signed, hashlib.sha256))).decode()


def test_tls_and_tokens(tmp_path: Path, models: Path) -> None:
    cert, key = certificate(tmp_path)
    secret = b"a secret that signs tokens in the tests"
    (tmp_path / "jwt.key").write_bytes(secret)
    toml = f"""
    server = {{ tls_cert = "{cert.name}", tls_key = "{key.name}" }}
    [auth]
    mode = "jwt"
    jwt = {{ key_file = "jwt.key", algorithms = ["HS256"], audience = "scoreveil", issuer = "tests" }}
    [models.digits]
    onnx = "{models}/digits.onnx"
    epsilon = 2.0
    """
    trust = ssl.create_default_context(cafile=str(cert))
    good = {"sub": "alice", "aud": "scoreveil", "iss": "tests", "exp": time.time() + 60}

    def status(server: Gateway, bearer: str) -> int:
        url = f"https://127.0.0.1:{server.port}/v2"
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {bearer}"})
        try:
            with urllib.request.urlopen(request, context=trust) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            error.close()
            return error.code

    with gateway(tmp_path, toml) as server:
        assert status(server, token(secret, **good)) == 200
        bad = [
            token(b"another secret that signs no tokens", **good),
            token(secret, **{**good, "exp": time.time() - 60}),
            token(secret, **{**good, "aud": "others"}),
            token(secret, **{**good, "iss": "others"}),
            token(secret, **{k: v for k, v in good.items() if k != "exp"}),
            token(secret, **{k: v for k, v in good.items() if k != "sub"}),
            token(secret, **good, head={"alg": "none"}).rpartition(".")[0] + ".",
            *(token(secret, **{**good, "sub": sub}) for sub in ("a\0b", "a\nb", "\ud800", "", "a" * 257, 7)),
            "no.token.at.all",
        ]
        assert [status(server, each) for each in bad] == [401] * len(bad)


@pytest.mark.parametrize("file", ["digits.onnx", "digits.skops"])
def test_a_veil_for_other_classes_is_refused_at_the_start(tmp_path: Path, models: Path, file: str) -> None:
    fit(*two_sides(3)).save(tmp_path / "veil.json")
    command = [str(SCOREVEIL), "serve", str(models / file), "--veil", "veil.json"]
    for option, port in zip(("--port", "--admin-port"), free_ports(2), strict=True):
        command += [option, str(port)]
    failed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120).stderr
    assert "This veil was fitted for 3 classes; these scores have 10." in failed
