"""User data to packed bytes and back (DESIGN.md, section 6).

`RecordLayout` is the whole API: `of` reads the layout off data, `stage` packs records into bytes, `allocate` and
`build` are the way back. Nothing here locks, shares or knows a slot.
"""

from .building import Chunk
from .layout import RecordLayout
from .packing import Column, Field
from .staging import Staged

__all__ = ["Chunk", "Column", "Field", "RecordLayout", "Staged"]
