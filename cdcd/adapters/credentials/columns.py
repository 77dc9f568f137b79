"""The rules of `columns` with their keys, and the cipher of the spool.

HMAC and AES come from the library cryptography, which is imported only if a rule needs it.
"""

import hmac
import os
from base64 import b64encode
from typing import Final

from cdcd.config.models import Config
from cdcd.config.sections.columns import ColumnsConfig, encryption_key_bytes
from cdcd.core.catalog.bindings import Bindings
from cdcd.core.catalog.patterns import parse_column_pattern
from cdcd.core.catalog.protection import ENCRYPT, HASH, ColumnRule, Protections, Seal, SealOf
from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.errors import PositionError

NONCE_BYTES: Final = 12
"""Bytes of a nonce of AES-GCM (NIST SP 800-38D, 8.2)."""


def protections(columns: ColumnsConfig, bindings: Bindings | None = None) -> Protections:
    """Return the protection rules of the configuration.

    The configuration's model has already checked patterns and keys.
    """
    seals: dict[str, Seal] = {}
    seals_of: dict[str, SealOf] = {}
    if columns.per_column:
        if columns.hash_key is not None:
            seals_of[HASH] = hashing_of(columns.hash_key.get_secret_value().encode())
        if columns.encryption_key is not None and columns.encrypt:
            key = encryption_key_bytes(columns.encryption_key)
            seals_of[ENCRYPT] = encrypting_of(key, columns.encryption_padding_bytes)
    if columns.hash_key is not None:
        seals[HASH] = hashing(columns.hash_key.get_secret_value().encode())
    if columns.encryption_key is not None and columns.encrypt:
        seals[ENCRYPT] = encrypting(encryption_key_bytes(columns.encryption_key))
    return Protections(
        [
            ColumnRule(
                parse_column_pattern(pattern, f"columns.{action}"),
                action,
                mask=columns.mask.get(pattern, ""),
                length=columns.truncate.get(pattern, 0),
                seal=seals.get(action),
                seal_of=seals_of.get(action),
            )
            for action, pattern in columns.patterns
        ],
        bindings=bindings,
    )


def bindings_of(columns: ColumnsConfig, checkpoint: Checkpoint | None) -> Bindings:
    """Return the columns to which former runs have bound the rules of the configuration.

    Raises:
        PositionError: the bindings in the checkpoint cannot be read.
    """
    found = Bindings()
    try:
        found.load(
            "" if checkpoint is None else checkpoint.bindings,
            protections(columns).digests,
        )
    except ValueError as error:
        raise PositionError(
            f"The checkpoint does not say which columns are protected: {error}.",
            hint="Start the version of cdcd that wrote the checkpoint, or a newer one. If another program writes to "
            "the checkpoint topic, revoke its right.",
        ) from error
    return found


def authenticating(key: bytes) -> Seal:
    """Return a function for HMAC-SHA-256 with this key (RFC 2104), as 32 bytes."""
    from cryptography.hazmat.primitives import hashes, hmac  # noqa: PLC0415  only where it is needed

    # Copying the object costs a third of creating it with its key.
    keyed = hmac.HMAC(key, hashes.SHA256())

    def seal(value: bytes) -> bytes:
        each = keyed.copy()
        each.update(value)
        return each.finalize()

    return seal


def hashing(key: bytes) -> Seal:
    """Return a function for HMAC-SHA-256 with this key, as 64 hexadecimal digits."""
    authenticate = authenticating(key)
    return lambda value: authenticate(value).hex().encode("ascii")


def encrypting(key: bytes) -> Seal:
    """Return AES-256-GCM with a nonce derived from the value: base64 of nonce, ciphertext and tag.

    With a random nonce, a row would get another text each time that it is sent, and a key would become a key that
    no consumer finds again. The nonce is the first 12 bytes of the value's HMAC, so a nonce repeats only with the
    same value, as in AES-SIV (RFC 5297). It reveals only which values are equal.
    """
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415  only where it is needed

    cipher = AESGCM(key)
    authenticate = authenticating(authenticating(key)(b"cdcd: nonce of a column's value"))

    def seal(value: bytes) -> bytes:
        nonce = authenticate(value)[:NONCE_BYTES]
        return b64encode(nonce + cipher.encrypt(nonce, value, None))

    return seal


def hashing_of(key: bytes) -> SealOf:
    """Return a function for `hashing` with a separate key for each column, derived from its identity."""
    authenticate = authenticating(key)
    return lambda identity: hashing(authenticate(b"cdcd: hashes of a column\0" + identity))


FORM: Final = 2
"""First byte of a ciphertext that belongs to a column. A ciphertext of the former form has the first byte of its
nonce there."""

KEY_ID_BYTES: Final = 4

END: Final = b"\x80"
"""Marks the end of the value, before the zeros of the padding."""


def key_id(key: bytes) -> bytes:
    """Return the id of the key that a ciphertext needs: the first bytes of an HMAC, which reveal nothing of the key."""
    return authenticating(key)(b"cdcd: id of a key")[:KEY_ID_BYTES]


def encrypting_of(key: bytes, padding: int) -> SealOf:
    """Return a function for `encrypting` with a nonce and associated data of the column's identity.

    The ciphertext is base64 of `FORM`, the id of the key, the nonce, the encrypted value, and the tag. The value
    ends with `END`, and is padded with zeros to a multiple of `padding` bytes.
    """
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415  only where it is needed

    cipher = AESGCM(key)
    head = bytes([FORM]) + key_id(key)
    derive = authenticating(authenticating(key)(b"cdcd: nonces of columns"))

    def of(identity: bytes) -> Seal:
        authenticate = authenticating(derive(identity))

        def seal(value: bytes) -> bytes:
            padded = value + END
            if padding:
                padded += bytes(-len(padded) % padding)
            nonce = authenticate(value)[:NONCE_BYTES]
            return b64encode(head + nonce + cipher.encrypt(nonce, padded, head + identity))

        return seal

    return of


def checkpoint_keys(config: Config) -> tuple[bytes, ...]:
    """Return the keys that authenticate the pipeline's checkpoints: the first key signs, and each key verifies.

    A key of `columns` is not used itself, but a key that is derived from it. So a tag reveals nothing about a
    hashed value.
    """
    columns = config.columns
    given = (config.topics.checkpoint_key, columns.hash_key, columns.encryption_key, *columns.former_keys)
    return tuple(
        [
            hmac.digest(key.get_secret_value().encode(), b"cdcd: tag of a checkpoint", "sha256")
            for key in given
            if key is not None
        ]
    )


PROCESS_KEY: Final = os.urandom(32)
"""Random key of this process, for data that it reads back itself."""


class SpoolCipher:
    """A `Cipher` of the spool: AES-256-GCM with a key that only this process has."""

    def __init__(self) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415  only where it is needed

        self._cipher = AESGCM(AESGCM.generate_key(bit_length=256))

    def seal(self, block: bytes) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, block, None)

    def open(self, sealed: bytes) -> bytes:
        return self._cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], None)
