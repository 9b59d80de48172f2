"""Tokens that others issue, and TLS: what each kind of key accepts, and what an attacker makes of a public one."""

import base64
import datetime
import hashlib
import hmac
import json
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from gateway_servers import Gateway, light_gateway
from scoreveil.gateway.auth import authenticator
from scoreveil.gateway.config import Auth, Jwt

KEYS: dict[str, Any] = {
    "RS256": rsa.generate_private_key(65537, 2048),
    "ES256": ec.generate_private_key(ec.SECP256R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate(),
}
KEYS["PS256"] = KEYS["RS256"]
OF_ALL = [*KEYS, "HS256"]
SECRET = b"a secret that signs tokens in the tests"


def claims(**others: Any) -> dict[str, Any]:
    return {"sub": "alice", "aud": "scoreveil", "iss": "tests", "exp": time.time() + 60, **others}


def public(algorithm: str) -> bytes:
    if algorithm == "HS256":
        return SECRET
    return bytes(KEYS[algorithm].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


def settings(folder: Path, *algorithms: str) -> Any:
    (folder / "jwt.key").write_bytes(public(algorithms[0]))
    return authenticator(Auth("jwt", jwt=Jwt(folder / "jwt.key", algorithms, audience="scoreveil", issuer="tests")))


def bearer(token: str, scheme: str = "Bearer") -> dict[bytes, bytes]:
    return {b"authorization": f"{scheme} {token}".encode()}


def signed(algorithm: str, content: dict[str, Any], **head: Any) -> str:
    key = SECRET if algorithm == "HS256" else KEYS[algorithm]
    return jwt.encode(content, key, algorithm, headers=head)


def by_hand(head: dict[str, Any], content: dict[str, Any], secret: bytes) -> str:
    def part(value: bytes) -> bytes:
        return base64.urlsafe_b64encode(value).rstrip(b"=")

    text = part(json.dumps(head).encode()) + b"." + part(json.dumps(content).encode())
    digest = hmac.digest(secret, text, hashlib.sha256) if secret else b""
    return (text + b"." + part(digest)).decode()


@pytest.mark.parametrize("algorithm", OF_ALL)
def test_a_token_of_the_configured_kind_is_accepted(algorithm: str, tmp_path: Path) -> None:
    who = settings(tmp_path, algorithm)
    token = signed(algorithm, claims())
    assert [who(bearer(token, scheme)) for scheme in ("Bearer", "bearer", "BEARER")] == ["alice"] * 3
    assert who(bearer(token, "Basic")) is None
    assert who({b"x-api-key": token.encode()}) == "alice"
    wrong = [
        *({key: value for key, value in claims().items() if key != left_out} for left_out in claims()),
        *(claims(exp=given) for given in (time.time() - 60, 0, "tomorrow", None)),
        *(claims(aud=given) for given in ("others", ["others"], None, [])),
        *(claims(iss=given) for given in ("others", ["others"], None)),
        claims(nbf=time.time() + 60),
    ]
    for content in wrong:
        given = by_hand({"alg": "HS256"}, content, SECRET) if algorithm == "HS256" else None
        if given is None:
            try:
                given = signed(algorithm, content)
            except (TypeError, ValueError):
                continue  # the issuer's library makes no such token
        assert who(bearer(given)) is None, content


@pytest.mark.parametrize("algorithm", OF_ALL)
def test_a_token_of_another_kind_is_not(algorithm: str, tmp_path: Path) -> None:
    who, pem = settings(tmp_path, algorithm), public(algorithm)
    forged = [by_hand({"alg": alg}, claims(), b"") for alg in ("none", "None", "NONE", "", algorithm, "HS256")]
    if algorithm != "HS256":  # the public key, as everybody knows it, taken for a secret
        for secret in (pem, pem.strip(), pem + b"\n", pem.replace(b"\n", b"\r\n")):
            forged += [by_hand({"alg": alg, "typ": "JWT"}, claims(), secret) for alg in ("HS256", algorithm)]
    forged += [signed(other, claims()) for other in OF_ALL if other != algorithm]
    attacker = ec.generate_private_key(ec.SECP256R1())
    own = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(attacker.public_key()))
    for head in ({"jwk": own}, {"kid": "/dev/null"}, {"kid": "../../jwt.key"}, {"jku": "http://127.0.0.1:1/keys"}):
        forged.append(jwt.encode(claims(), attacker, "ES256", headers=head))
        forged.append(by_hand({"alg": "HS256", **head}, claims(), bytes(1)))
    forged.append(by_hand({"alg": algorithm, "crit": ["b64"], "b64": False}, claims(), SECRET))
    good = signed(algorithm, claims())
    forged += [good[:-4], good.rpartition(".")[0] + ".", f"{good}.{good}", good[:-4] + "AAAA", "", "..", "a.b.c"]
    assert [who(bearer(token)) for token in forged] == [None] * len(forged)
    assert who(bearer(signed(algorithm, claims(), kid="any"))) == "alice"  # there is one key, whatever its name


def test_one_key_serves_the_algorithms_of_its_kind(tmp_path: Path) -> None:
    who = settings(tmp_path, "RS256", "PS256")
    assert [who(bearer(signed(algorithm, claims()))) for algorithm in ("RS256", "PS256", "ES256")] == [
        "alice",
        "alice",
        None,
    ]


@pytest.mark.parametrize("mixed", [("HS256", "RS256"), ("RS256", "HS256"), ("none",), ("RS256", "none"), ()])
def test_algorithms_that_mix_secrets_and_public_keys_are_refused(mixed: tuple[str, ...], tmp_path: Path) -> None:
    from scoreveil.gateway import config_file

    table = {"key_file": "k", "algorithms": list(mixed), "audience": "a", "issuer": "i"}
    tree = {"auth": {"mode": "jwt", "jwt": table}, "models": {"m": {"python": "a:b", "epsilon": 1.0}}}
    with pytest.raises(ValueError, match=r"auth\.jwt"):
        config_file.parse(tree, tmp_path)


def test_keys_that_fit_no_algorithm_are_refused_at_the_start(tmp_path: Path) -> None:
    key = tmp_path / "jwt.key"
    cases = [("HS256", b"short"), ("HS256", bytes(31)), ("RS256", SECRET), ("RS256", b""), ("ES256", public("RS256"))]
    cases += [("HS256", public("RS256")), ("EdDSA", public("ES256"))]
    for algorithm, content in cases:
        key.write_bytes(content)
        with pytest.raises(ValueError, match=r"auth\.jwt\.key_file") as refused:
            authenticator(Auth("jwt", jwt=Jwt(key, (algorithm,), audience="a", issuer="i")))
        assert "a secret that signs" not in str(refused.value)


# TLS


def certificate(folder: Path, name: str, issuer: str | None = None, days: int = 2, ca: bool = False) -> None:
    """NAME.pem and NAME.key, signed by another such pair or by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    above, signer = subject, key
    if issuer is not None:
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        above = x509.load_pem_x509_certificate((folder / f"{issuer}.pem").read_bytes()).subject
        signer = load_pem_private_key((folder / f"{issuer}.key").read_bytes(), None)  # type: ignore[assignment]
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(above).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(days=9))
    builder = builder.not_valid_after(now + datetime.timedelta(days=days))
    builder = builder.add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
    made = builder.sign(signer, hashes.SHA256())
    (folder / f"{name}.pem").write_bytes(made.public_bytes(Encoding.PEM))
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / f"{name}.key").write_bytes(private)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("tls")
    certificate(folder, "ca", ca=True)
    certificate(folder, "other-ca", ca=True)
    certificate(folder, "server", "ca")
    certificate(folder, "client", "ca")
    certificate(folder, "expired", "ca", days=-1)
    certificate(folder, "stranger", "other-ca")
    certificate(folder, "client-of-client", "client")
    toml = 'server = { tls_cert = "server.pem", tls_key = "server.key", tls_client_ca = "ca.pem" }\n'
    with light_gateway(folder, toml=toml) as made:
        yield made


def asked(server: Gateway, client: str | None, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> bytes:
    """What the gateway answers to a client with this certificate; nothing where it ends the connection."""
    context = ssl.create_default_context(cafile=str(server.folder / "ca.pem"))
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.minimum_version = context.maximum_version = version
    if client is not None:
        context.load_cert_chain(server.folder / f"{client}.pem", server.folder / f"{client}.key")
    try:
        with (
            socket.create_connection(("127.0.0.1", server.port), timeout=10) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as connection,
        ):
            connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            return connection.recv(4096)
    except (ssl.SSLError, ConnectionError):
        return b""


@pytest.mark.slow
def test_a_client_needs_a_certificate_of_the_configured_authority(guarded: Gateway) -> None:
    assert b" 200 " in asked(guarded, "client")
    for client in (None, "expired", "stranger", "client-of-client", "other-ca"):
        assert asked(guarded, client) == b"", client
    assert asked(guarded, "client", ssl.TLSVersion.TLSv1_2) == b""


@pytest.mark.slow
def test_what_is_no_tls_is_not_answered(guarded: Gateway) -> None:
    for first in (b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n", bytes(100), b"\x16\x03\x01\xff\xff" + bytes(9)):
        with socket.create_connection(("127.0.0.1", guarded.port), timeout=15) as connection:
            connection.sendall(first)
            try:
                answer = connection.makefile("rb").read()
            except ConnectionError:
                answer = b""
        assert b"HTTP/" not in answer
    assert b" 200 " in asked(guarded, "client")
