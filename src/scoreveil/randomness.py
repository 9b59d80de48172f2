"""Where draws come from.

Production draws are an AES-256-CTR keystream keyed from the operating system, one per thread, keyed anew after a
fork. Keyed draws (`KeyedDraws`) are a pseudo-random function of a secret and a message: the same message always gets
the same draws, with no state and on any machine. A numpy Generator is used only where the caller passes one.
"""

import hmac
import os
import threading
from functools import lru_cache

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from scoreveil.arrays import Floats

Words = NDArray[np.uint64]

SHORT = 512  # draws served from a buffer, so that one vector does not pay for a cipher call
BUFFER = 4096
MIN_SECRET = 16
BLOCK = 16  # bytes, of AES
FRACTION, ONE = np.uint64(12), np.uint64(0x3FF0_0000_0000_0000)  # of a float64: 52 bits, and the exponent of 1

_generation = 0


def _forked() -> None:
    global _generation
    _generation += 1


if hasattr(os, "register_at_fork"):  # where processes can fork
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
    bits >>= FRACTION
    bits |= ONE
    drawn = bits.view(np.float64)
    drawn -= 1.0
    return drawn


class _Blocks(threading.local):
    """AES-256 on rows of 16 bytes, each by itself; one cipher for each thread."""

    def __init__(self, key: bytes) -> None:
        self._encrypt = Cipher(algorithms.AES256(key), modes.ECB()).encryptor()

    def __call__(self, blocks: Words) -> Words:
        encrypted = np.empty(blocks.size + 2, dtype="<u8")  # a block more: the cipher asks for room
        self._encrypt.update_into(np.ascontiguousarray(blocks).data.cast("B"), encrypted.data.cast("B"))
        return encrypted[:-2].reshape(blocks.shape)


class KeyedDraws:
    """Draws that are a function of a message alone, for whoever holds the secret.

    `context` names what the draws are for (the mechanism, its settings, the model): other contexts are independent,
    so that the same secret can serve many; one of them always asks for the same number of draws. CBC-MAC under AES-256,
    with the length first, makes 16 bytes of each message: one draw or two. More are these, counted up under another
    key. A whole batch takes a few calls. Why that is a pseudo-random function: docs/derivations/keyed-draws.md.
    """

    def __init__(self, secret: bytes, context: bytes) -> None:
        if not isinstance(secret, bytes):
            raise ValueError(f"Expected a secret of type bytes, got {type(secret).__name__}.")
        if len(secret) < MIN_SECRET:
            raise ValueError(f"Expected a secret of at least {MIN_SECRET} bytes, got {len(secret)}.")
        key = hmac.digest(secret, b"scoreveil keyed draws 2\0" + context, "sha256")
        self._authenticate, self._expand = (_Blocks(hmac.digest(key, use, "sha256")) for use in (b"mac", b"draws"))
        self._starts: dict[int, Words] = {}  # what the length of a message becomes

    def uniforms(self, messages: NDArray[np.uint8], columns: int) -> Floats:
        """One row of uniforms in [0, 1) for each row of the (n, bytes) messages."""
        words = self.words(messages, -(-columns // 2))
        return to_uniforms(words[:, :columns].astype(np.uint64))

    def words(self, messages: NDArray[np.uint8], blocks: int) -> Words:
        """(n, 2·blocks) pseudo-random words of 64 bits, which uniforms are made of."""
        n, length = messages.shape
        if n == 0:
            return np.empty((0, 2 * blocks), dtype="<u8")
        if length not in self._starts:
            self._starts[length] = self._authenticate(np.array([[length, 0]], dtype="<u8"))
        size = max(1, -(-length // BLOCK)) * BLOCK
        if length != size:
            padded = np.zeros((n, size), dtype=np.uint8)
            padded[:, :length] = messages
            messages = padded
        state = self._starts[length]
        taken = np.ascontiguousarray(messages).view("<u8")
        for start in range(0, taken.shape[1], 2):
            state = self._authenticate(taken[:, start : start + 2] ^ state)
        if blocks == 1:
            return state
        return self._expand(state[:, None] ^ _counter(blocks)).reshape(n, -1)


@lru_cache(maxsize=64)
def _counter(blocks: int) -> Words:
    counter = np.zeros((blocks, 2), dtype="<u8")
    counter[:, 0] = np.arange(blocks)
    return counter
