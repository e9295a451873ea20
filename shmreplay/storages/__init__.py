"""Where records lie."""

from .base import Storage
from .list import ListStorage
from .memmap import LazyMemmapStorage
from .tensor import LazyTensorStorage, TensorStorage

__all__ = ["LazyMemmapStorage", "LazyTensorStorage", "ListStorage", "Storage", "TensorStorage"]
