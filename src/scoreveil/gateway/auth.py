"""Who asks: an API key, whose hash alone is stored, or a JWT. Failing either is 401, with no reason given."""

import hashlib
import hmac
import secrets
from collections.abc import Callable
from typing import Any

from scoreveil import secret_file
from scoreveil.gateway.config import SYMMETRIC, Auth, Client, Jwt

ANONYMOUS = "anonymous"
MIN_KEY = 16  # bytes of a key that is taken; those that `new_key` makes have 46
Authenticate = Callable[[dict[bytes, bytes]], str | None]


def authenticator(auth: Auth) -> Authenticate:
    """A function from headers to the name of a client; None for nobody."""
    if auth.mode == "keys":
        return _by_key(auth.clients)
    if auth.mode == "jwt" and auth.jwt is not None:
        return _by_token(auth.jwt)
    return lambda headers: ANONYMOUS


def new_key() -> tuple[str, str]:
    """A fresh API key, and the hash to store."""
    key = f"sv_{secrets.token_urlsafe(32)}"
    return key, key_hash(key.encode())


def key_hash(key: bytes) -> str:
    # keys are 256 random bits, so a plain hash cannot be searched
    return hashlib.sha256(key).hexdigest()


def _presented(headers: dict[bytes, bytes]) -> bytes:
    """What the client shows: `Authorization: Bearer …` or `X-API-Key: …`."""
    scheme, _, value = headers.get(b"authorization", b"").partition(b" ")
    return value.strip() if scheme.lower() == b"bearer" else headers.get(b"x-api-key", b"")


def _by_key(clients: tuple[Client, ...]) -> Authenticate:
    known = [(bytes.fromhex(client.sha256), client.name) for client in clients]

    def authenticate(headers: dict[bytes, bytes]) -> str | None:
        key = _presented(headers)
        if len(key) < MIN_KEY:  # none, or one that anyone can guess, whatever hash the file has
            return None
        digest = hashlib.sha256(key).digest()
        # every one is compared, in constant time each
        names = [name for stored, name in known if hmac.compare_digest(stored, digest)]
        return names[-1] if names else None

    return authenticate


def _by_token(settings: Jwt) -> Authenticate:
    import jwt

    key: Any = secret_file.read(settings.key_file)
    if settings.algorithms[0] in SYMMETRIC and len(key) < 32:
        raise ValueError(f"auth.jwt.key_file holds {len(key)} bytes; HS algorithms need at least 32.")
    for name in settings.algorithms:  # a public key is no secret: everybody could sign with it
        try:
            key = jwt.get_algorithm_by_name(name).prepare_key(key)
        except (jwt.PyJWTError, ValueError, TypeError):
            raise ValueError(f"auth.jwt.key_file holds no key for {name}.") from None

    def authenticate(headers: dict[bytes, bytes]) -> str | None:
        try:
            claims = jwt.decode(
                _presented(headers),
                key,
                algorithms=list(settings.algorithms),
                audience=settings.audience,
                issuer=settings.issuer,
                leeway=settings.leeway_seconds,
                options={"require": ["exp", settings.client_claim]},
            )
        except (jwt.PyJWTError, ValueError):
            return None
        client = claims[settings.client_claim]
        # control characters and halves of surrogates are no part of a name, nor of a log or a ledger
        return client if isinstance(client, str) and 0 < len(client) <= 256 and client.isprintable() else None

    return authenticate
