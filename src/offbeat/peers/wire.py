"""What travels: one greeting per connection, then frames of 16 bytes, a BODY frame being followed by raw bytes.

    greeting   magic 8 | reply 1 | sha256 of the run's key 32 | sender 4 | receiver 4
    frame      kind 1 | dtype 1 | unused 2 | number 4 | nbytes 8

Nothing is ever unpickled. The key keeps strangers out; it is no defence against someone who reads the wire.
"""

import hashlib
import struct
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import BadInput

MAGIC = b"offbeat\x02"
KEY_NBYTES_AT_LEAST = 16

_GREETING = struct.Struct("!8sB32sII")
_FRAME = struct.Struct("!BBxxIQ")
GREETING_NBYTES = _GREETING.size
FRAME_NBYTES = _FRAME.size

DTYPES = (
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool,
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
    torch.float8_e4m3fn, torch.float8_e5m2,
)  # fmt: skip


class Reply(IntEnum):
    """The second field of a greeting: what the sender makes of the connection."""

    HELLO = 0  # from the one who dialled
    WELCOME = 1  # this connection it is
    MINE = 2  # we are dialling you too, and the lower rank's connection counts


class Kind(IntEnum):
    ASK = 1  # shall we two meet?
    YES = 2  # we shall, if you still want to
    NO = 3
    WAIT = 4  # you will hear: my own question comes first
    CONFIRM = 5  # so be it
    RETRACT = 6  # forget my question
    OFFER = 7  # I have a swap of so many bytes of this dtype ready
    BODY = 8  # and here it is: nbytes of raw memory follow
    FREE = 9  # I refused you before; now you may ask me again
    RING = 10  # a descriptor comes along: memory of mine that we could share
    READY = 11  # I see your memory
    PIECE = 12  # the next slot of my ring is full
    FREED = 13  # and I emptied the next one of yours


class Frame(NamedTuple):
    kind: Kind
    number: int = 0  # of the question; of an OFFER, 1 if its body can be shared; of a PIECE, the sender's core
    dtype: int = 0  # an index into DTYPES
    nbytes: int = 0


class WireError(Exception):
    """What came is no part of the protocol; the connection is of no use any more."""


def pack(frame: Frame) -> bytes:
    return _FRAME.pack(frame.kind, frame.dtype, frame.number, frame.nbytes)


def unpack(raw: bytearray) -> Frame:
    kind, dtype, number, nbytes = _FRAME.unpack(raw)
    try:
        return Frame(Kind(kind), number, dtype, nbytes)
    except ValueError:
        raise WireError(f"it sent a frame of unknown kind {kind}") from None


def greet(reply: Reply, key: bytes, sender: int, receiver: int) -> bytes:
    return _GREETING.pack(MAGIC, reply, hashlib.sha256(key).digest(), sender, receiver)


def ungreet(raw: bytes, key: bytes, receiver: int) -> tuple[Reply, int]:
    """What the other end wants, and its rank; `WireError` for a stranger."""
    magic, reply, digest, sender, meant_for = _GREETING.unpack(raw)
    if magic != MAGIC or digest != hashlib.sha256(key).digest():
        raise WireError("it does not belong to this run: its greeting shows another key")
    if meant_for != receiver or reply not in tuple(Reply):
        raise WireError(f"its greeting is meant for rank {meant_for}, and this is rank {receiver}")
    return Reply(reply), sender


def dtype_name(code: int) -> str:
    return str(DTYPES[code]).removeprefix("torch.") if code < len(DTYPES) else f"unknown dtype {code}"


def dtype_code(x: Tensor) -> int:
    if x.dtype not in DTYPES:
        raise BadInput(f"a swap cannot carry {x.dtype}: convert the tensor to one of {', '.join(map(str, DTYPES))}")
    return DTYPES.index(x.dtype)


def memory(x: Tensor, name: str) -> memoryview:
    """The bytes of a tensor, not a copy of them."""
    if x.device.type != "cpu":
        raise BadInput(f"{name} is on {x.device}, and a swap moves CPU memory: copy it with .cpu() first")
    if x.layout != torch.strided or not x.is_contiguous():
        raise BadInput(f"{name} is not contiguous, and a swap moves memory as it lies: use .contiguous() first")
    # numpy knows no bfloat16, and a 0-dimensional tensor cannot be viewed as another dtype: flatten, then bytes.
    flat = x.detach().reshape(-1).view(torch.uint8).numpy()
    return memoryview(flat)  # type: ignore[arg-type]  # an ndarray is a buffer; numpy's stubs say so from Python 3.12 on
