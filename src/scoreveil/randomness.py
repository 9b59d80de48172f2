"""Where draws come from.

Production draws are an AES-256-CTR keystream keyed from the operating system, one per thread, keyed anew after a
fork. Keyed draws (`KeyedDraws`) are a pseudo-random function of a secret and a message: the same message always gets
the same draws, with no state and on any machine. A numpy Generator is used only where the caller passes one.
"""

import hashlib
import hmac
import os
import threading

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

Floats = NDArray[np.float64]

SHORT = 512  # draws served from a buffer, so that one vector does not pay for a cipher call
BUFFER = 4096
SHORTEST_SECRET = 16

_generation = 0


def _forked() -> None:
    global _generation
    _generation += 1


os.register_at_fork(after_in_child=_forked)


class _Stream(threading.local):
    """The keystream of one thread."""

    def __init__(self) -> None:
        self._rekey()

    def _rekey(self) -> None:
        self.generation = _generation
        self._cipher = Cipher(algorithms.AES256(os.urandom(32)), modes.CTR(bytes(16))).encryptor()
        self._buffer = np.empty(0)

    def draw(self, count: int) -> Floats:
        if self.generation != _generation:
            self._rekey()
        if count > SHORT:
            return self._fresh(count)
        if len(self._buffer) < count:
            self._buffer = self._fresh(BUFFER)
        drawn, self._buffer = self._buffer[:count], self._buffer[count:]
        return drawn

    def _fresh(self, count: int) -> Floats:
        bits = np.zeros(count, dtype=np.uint64)
        self._cipher.update_into(bits.data.cast("B"), bits.data.cast("B"))
        return to_uniforms(bits)


_stream = _Stream()


def secure_uniforms(rows: int, columns: int) -> Floats:
    """Uniform draws in [0, 1) from the cryptographic stream of this thread."""
    return _stream.draw(rows * columns).reshape(rows, columns)


def to_uniforms(bits: NDArray[np.uint64]) -> Floats:
    """The top 52 bits of each word, as a multiple of 2^-52 in [0, 1). Works in place."""
    # as the fraction of a float in [1, 2), which needs no conversion
    np.right_shift(bits, np.uint64(12), out=bits)
    np.bitwise_or(bits, np.uint64(0x3FF0_0000_0000_0000), out=bits)
    drawn = bits.view(np.float64)
    np.subtract(drawn, 1.0, out=drawn)
    return drawn


class KeyedDraws:
    """Draws that are a function of a message alone, for whoever holds the secret.

    `context` names what the draws are for (the mechanism, its settings, the model): other contexts are independent,
    so that the same secret can serve many.
    """

    def __init__(self, secret: bytes, context: bytes) -> None:
        if not isinstance(secret, bytes):
            raise ValueError(f"Expected a secret of type bytes, got {type(secret).__name__}.")
        if len(secret) < SHORTEST_SECRET:
            raise ValueError(f"Expected a secret of at least {SHORTEST_SECRET} bytes, got {len(secret)}.")
        key = hmac.digest(secret, b"scoreveil keyed draws 1\0" + context, "sha256")
        # a sponge with its key in a block of its own is a pseudo-random function (as in KMAC)
        self._keyed = hashlib.shake_256(key.ljust(136, b"\0"))

    def uniforms(self, messages: list[bytes], columns: int) -> Floats:
        """One row of uniforms in [0, 1) for each message."""
        drawn = bytearray()
        for message in messages:
            state = self._keyed.copy()
            state.update(message)
            drawn += state.digest(8 * columns)
        bits = np.frombuffer(drawn, dtype="<u8").astype(np.uint64)
        return to_uniforms(bits).reshape(len(messages), columns)
