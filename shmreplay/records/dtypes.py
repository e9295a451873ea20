"""Which torch dtypes can be stored, and how numpy carries each.

numpy moves the bytes. For a dtype that numpy lacks, its bits travel as an integer of the same size (the *carrier*)
and are viewed back at the end; no value is ever cast.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from ..errors import LayoutTypeError

__all__ = ["DtypeCard", "card_of", "dtype_named"]

_NATIVE = (
    "bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 float32 float64 complex64 complex128".split()
)
_CARRIED = (
    "bfloat16 complex32 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu "
    "float4_e2m1fn_x2".split()
)
_CARRIERS = {1: "uint8", 2: "int16", 4: "int32"}


class DtypeCard(NamedTuple):
    """What the copy loops need to know of one torch dtype."""

    name: str
    dtype: torch.dtype
    itemsize: int
    array_dtype: np.dtype
    carrier: torch.dtype | None  # None: numpy has the dtype itself


def _card(name: str, carried: bool) -> DtypeCard:
    dtype = getattr(torch, name)
    carrier = getattr(torch, _CARRIERS[dtype.itemsize]) if carried else None
    # Taken from torch, so that an identity test against `tensor.numpy().dtype` holds.
    array_dtype = torch.empty(0, dtype=carrier or dtype).numpy().dtype
    return DtypeCard(name, dtype, dtype.itemsize, array_dtype, carrier)


_CARDS = {
    card.dtype: card
    for names, carried in ((_NATIVE, False), (_CARRIED, True))
    for card in (_card(name, carried) for name in names if hasattr(torch, name))
}
_NAMED = {card.name: card.dtype for card in _CARDS.values()}


def card_of(dtype: torch.dtype, shown: str) -> DtypeCard:
    """The card of a dtype; `shown` is the key for the message.

    Raises:
        LayoutTypeError: the dtype is quantized or narrower than a byte.
    """
    card = _CARDS.get(dtype)
    if card is None:
        raise LayoutTypeError(
            f"{dtype} under {shown} cannot be stored; dequantize it or convert it to one of {', '.join(_NAMED)}."
        )
    return card


def dtype_named(name: object) -> torch.dtype:
    """The torch dtype of a name as it stands in a layout's JSON.

    Raises:
        LayoutTypeError: this torch has no such dtype, or it cannot be stored.
    """
    dtype = _NAMED.get(name) if isinstance(name, str) else None
    if dtype is None:
        raise LayoutTypeError(
            f"The layout names the dtype {name!r}, which torch {torch.__version__} cannot store here; "
            "open the buffer with the torch version that wrote it."
        )
    return dtype
