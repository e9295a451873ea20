"""Every named point that a call passes, in order, and what a fault there must leave.

One row: the point, the operation word found (what row of the recovery table applies; ``None`` when no operation was
open), and the whole state that the next call of a survivor finds - the same for a death and for an interruption.
``BEFORE``: as if the call had never begun. ``AFTER``: as if it had returned. Otherwise see ``whole_state.Left``.
"""

from whole_state import AFTER, BEFORE, Left

from shmreplay.state.ops import OP_ABANDON, OP_COMMIT, OP_EMPTY, OP_LEDGER, OP_RESERVE, OP_WORDS

GIVEN_UP = Left(("marked", "marked"))  # reserved, never committed: two slots without a record
WAITED = Left(after=("waits",))  # only the statistics know
COUNTED = Left(after=("calls",))  # the batch was returned to nobody; the budget is back

_RESERVE = [
    ("locked.acquired", None, BEFORE),
    ("locked.saved", None, BEFORE),
    ("locked.begun", OP_RESERVE, BEFORE),
    ("locked.entry.filled", OP_RESERVE, BEFORE),
    ("locked.entry.open", OP_RESERVE, BEFORE),
    ("locked.entry", OP_RESERVE, BEFORE),
    ("locked.stamps.odd", OP_RESERVE, Left(("odd",))),
    ("locked.stamps.generation", OP_RESERVE, Left(("generation",))),
    ("locked.stamps.marked", OP_RESERVE, Left(("marked",))),
    ("locked.stamps.odd", OP_RESERVE, Left(("marked", "odd"))),
    ("locked.stamps.generation", OP_RESERVE, Left(("marked", "generation"))),
    ("locked.stamps.marked", OP_RESERVE, GIVEN_UP),
    ("locked.marked", OP_RESERVE, GIVEN_UP),
    ("locked.finishing", OP_RESERVE, GIVEN_UP),
    ("reserved", None, GIVEN_UP),
]

_EXTEND = _RESERVE + [
    ("copying", None, GIVEN_UP),
    ("copying", None, GIVEN_UP),
    ("copied", None, GIVEN_UP),
    ("locked.acquired", None, GIVEN_UP),
    ("locked.saved", None, GIVEN_UP),
    ("locked.begun", OP_COMMIT, AFTER),
    ("locked.stamps.whole", OP_COMMIT, AFTER),
    ("locked.stamps.whole", OP_COMMIT, AFTER),
    ("locked.whole", OP_COMMIT, AFTER),
    ("locked.counted", OP_COMMIT, AFTER),
    ("locked.entry.freed", OP_COMMIT, AFTER),
    ("locked.finishing", OP_COMMIT, AFTER),
    ("committed", None, AFTER),
]

_WRITE_AT = [
    ("locked.acquired", None, BEFORE),
    ("locked.saved", None, BEFORE),
    ("locked.begun", OP_RESERVE, BEFORE),
    ("locked.entry.filled", OP_RESERVE, BEFORE),
    ("locked.entry.open", OP_RESERVE, BEFORE),
    ("locked.entry", OP_RESERVE, BEFORE),
    ("locked.stamps.odd", OP_RESERVE, Left(("odd", "odd"))),
    ("locked.stamps.generation", OP_RESERVE, Left(("generation", "generation"))),
    ("locked.stamps.marked", OP_RESERVE, GIVEN_UP),
    ("locked.finishing", OP_RESERVE, GIVEN_UP),
    ("reserved", None, GIVEN_UP),
    ("copying", None, GIVEN_UP),
    ("copied", None, GIVEN_UP),
    ("locked.acquired", None, GIVEN_UP),
    ("locked.saved", None, GIVEN_UP),
    ("locked.begun", OP_COMMIT, AFTER),
    ("locked.stamps.whole", OP_COMMIT, AFTER),
    ("locked.whole", OP_COMMIT, AFTER),
    ("locked.counted", OP_COMMIT, AFTER),
    ("locked.entry.freed", OP_COMMIT, AFTER),
    ("locked.finishing", OP_COMMIT, AFTER),
    ("committed", None, AFTER),
]

_LAYOUT = Left(after=("layout",))
_CLAIMED = ("layout", "W_CLAIMED")
_FIRST_GIVEN_UP = Left(("marked", "marked"), after=(*_CLAIMED, "W_EXTENT"))

_FIRST = [
    ("locked.acquired", None, BEFORE),
    ("locked.layout.owner", None, BEFORE),
    ("locked.layout.creating", None, BEFORE),
    ("layout.begun", None, BEFORE),
    ("layout.written", None, BEFORE),
    ("layout.renamed", None, BEFORE),
    ("layout.written", None, BEFORE),
    ("layout.renamed", None, BEFORE),
    ("layout.created", None, BEFORE),
    ("locked.acquired", None, BEFORE),
    ("locked.layout.digest", None, BEFORE),
    ("locked.layout.ended", None, _LAYOUT),
    ("locked.acquired", None, _LAYOUT),
    ("layout.ready", None, _LAYOUT),
    ("locked.acquired", None, _LAYOUT),
    ("claimed", None, _LAYOUT),
    ("locked.acquired", None, _LAYOUT),
    ("locked.claimed", None, Left(after=_CLAIMED)),
    ("locked.acquired", None, Left(after=_CLAIMED)),
    ("locked.saved", None, Left(after=_CLAIMED)),
    ("locked.begun", OP_RESERVE, Left(after=_CLAIMED)),
    ("locked.entry.filled", OP_RESERVE, Left(after=_CLAIMED)),
    ("locked.entry.open", OP_RESERVE, Left(after=_CLAIMED)),
    ("locked.entry", OP_RESERVE, Left(after=_CLAIMED)),
    ("locked.stamps.odd", OP_RESERVE, Left(("odd", "odd"), after=_CLAIMED)),
    ("locked.stamps.generation", OP_RESERVE, Left(("generation", "generation"), after=_CLAIMED)),
    ("locked.stamps.marked", OP_RESERVE, Left(("marked", "marked"), after=_CLAIMED)),
    ("locked.marked", OP_RESERVE, Left(("marked", "marked"), after=_CLAIMED)),
    ("locked.finishing", OP_RESERVE, Left(("marked", "marked"), after=_CLAIMED)),
    ("reserved", None, _FIRST_GIVEN_UP),
    ("copying", None, _FIRST_GIVEN_UP),
    ("copied", None, _FIRST_GIVEN_UP),
    ("locked.acquired", None, _FIRST_GIVEN_UP),
    ("locked.saved", None, _FIRST_GIVEN_UP),
    ("locked.begun", OP_COMMIT, AFTER),
    ("locked.stamps.whole", OP_COMMIT, AFTER),
    ("locked.whole", OP_COMMIT, AFTER),
    ("locked.counted", OP_COMMIT, AFTER),
    ("locked.entry.freed", OP_COMMIT, AFTER),
    ("locked.finishing", OP_COMMIT, AFTER),
    ("committed", None, AFTER),
]

_SAMPLE = [
    ("locked.acquired", None, BEFORE),
    ("locked.saved", None, BEFORE),
    ("locked.begun", OP_LEDGER, BEFORE),
    ("locked.admit.row", OP_LEDGER, BEFORE),
    ("locked.admit.reserved", OP_LEDGER, BEFORE),
    ("locked.finishing", OP_LEDGER, BEFORE),
    ("admitted", None, BEFORE),
    ("drawn", None, BEFORE),
    ("gathered", None, BEFORE),
    ("settle", None, BEFORE),
    ("locked.acquired", None, BEFORE),
    ("locked.saved", None, BEFORE),
    ("locked.begun", OP_LEDGER, BEFORE),
    ("locked.settle.row", OP_LEDGER, BEFORE),
    ("locked.settle.reserved", OP_LEDGER, BEFORE),
    ("locked.settle.counted", OP_LEDGER, COUNTED),
    ("locked.finishing", OP_LEDGER, COUNTED),
    ("settled", None, AFTER),
]

_WAIT = [
    ("locked.acquired", None, BEFORE),
    ("locked.acquired", None, WAITED),
    ("locked.saved", None, WAITED),
    ("locked.begun", OP_LEDGER, WAITED),
    ("locked.queue.filled", OP_LEDGER, WAITED),
    ("locked.queue.entered", OP_LEDGER, WAITED),
    ("locked.finishing", OP_LEDGER, WAITED),
    ("waiting", None, WAITED),
    ("locked.acquired", None, WAITED),
    ("locked.acquired", None, WAITED),
    ("locked.saved", None, WAITED),
    ("locked.begun", OP_LEDGER, WAITED),
    ("locked.queue.left", OP_LEDGER, WAITED),
    ("locked.finishing", OP_LEDGER, WAITED),
]

# a list write of slot 7 waits in vain for a range write of slots 7 and 0 of the same process
_BLOCKED = _RESERVE + [
    ("locked.acquired", None, GIVEN_UP),
    ("blocked", None, GIVEN_UP),
    ("locked.acquired", None, GIVEN_UP),
    ("locked.saved", None, GIVEN_UP),
    ("locked.begun", OP_WORDS, GIVEN_UP),
    ("locked.queue.filled", OP_WORDS, GIVEN_UP),
    ("locked.queue.entered", OP_WORDS, GIVEN_UP),
    ("locked.finishing", OP_WORDS, GIVEN_UP),
    ("blocked", None, GIVEN_UP),
    ("locked.acquired", None, GIVEN_UP),
    ("locked.saved", None, GIVEN_UP),
    ("locked.begun", OP_WORDS, GIVEN_UP),
    ("locked.queue.left", OP_WORDS, GIVEN_UP),
    ("locked.finishing", OP_WORDS, GIVEN_UP),
    ("locked.acquired", None, GIVEN_UP),
    ("locked.saved", None, GIVEN_UP),
    ("locked.begun", OP_ABANDON, GIVEN_UP),
    ("locked.abandoned", OP_ABANDON, GIVEN_UP),
    ("locked.entry.freed", OP_ABANDON, GIVEN_UP),
    ("locked.finishing", OP_ABANDON, GIVEN_UP),
]

_PIN = [
    ("locked.acquired", None, BEFORE),
    ("locked.saved", None, BEFORE),
    ("locked.begun", OP_RESERVE, BEFORE),
    ("locked.entry.filled", OP_RESERVE, BEFORE),
    ("locked.entry.open", OP_RESERVE, BEFORE),
    ("locked.finishing", OP_RESERVE, BEFORE),
    ("pinned", None, BEFORE),
    ("locked.acquired", None, BEFORE),
    ("locked.saved", None, BEFORE),
    ("locked.begun", OP_ABANDON, BEFORE),
    ("locked.abandoned", OP_ABANDON, BEFORE),
    ("locked.entry.freed", OP_ABANDON, BEFORE),
    ("locked.finishing", OP_ABANDON, BEFORE),
]

_ABANDON = _RESERVE + [
    ("locked.acquired", None, GIVEN_UP),
    ("locked.saved", None, GIVEN_UP),
    ("locked.begun", OP_ABANDON, GIVEN_UP),
    ("locked.abandoned", OP_ABANDON, GIVEN_UP),
    ("locked.entry.freed", OP_ABANDON, GIVEN_UP),
    ("locked.finishing", OP_ABANDON, GIVEN_UP),
]

_EMPTY = [
    ("locked.acquired", None, BEFORE),
    ("locked.saved", None, BEFORE),
    ("locked.begun", OP_EMPTY, AFTER),
    ("locked.epoch", OP_EMPTY, AFTER),
    ("locked.emptied", OP_EMPTY, AFTER),
    ("locked.ledger.emptied", OP_EMPTY, AFTER),
    ("locked.finishing", OP_EMPTY, AFTER),
    ("emptied", None, AFTER),
]

_RATIO = [
    ("locked.acquired", None, BEFORE),
    ("locked.saved", None, BEFORE),
    ("locked.begun", OP_WORDS, BEFORE),
    ("locked.ratio.pair", OP_WORDS, BEFORE),
    ("locked.changed", OP_WORDS, BEFORE),
    ("locked.finishing", OP_WORDS, BEFORE),
]

_SET_WORDS = [
    ("locked.acquired", None, BEFORE),
    ("locked.saved", None, BEFORE),
    ("locked.begun", OP_WORDS, BEFORE),
    ("locked.changed", OP_WORDS, BEFORE),
    ("locked.finishing", OP_WORDS, BEFORE),
]

_SNAPSHOT = _SET_WORDS + [("gate.taken", None, BEFORE)] + _SET_WORDS + _SET_WORDS

ROWS = {
    "extend": _EXTEND,
    "first": _FIRST,
    "write_at": _WRITE_AT,
    "sample": _SAMPLE,
    "wait": _WAIT,
    "blocked": _BLOCKED,
    "pin": _PIN,
    "abandon": _ABANDON,
    "empty": _EMPTY,
    "ratio": _RATIO,
    "close": _SET_WORDS,
    "snapshot": _SNAPSHOT,
}

# Points of other files of this folder: what must hold there is said in the tests named.
ELSEWHERE = {
    "test_recoverer.py": {
        "locked.ownerdead", "locked.recover", "locked.recovery.applied", "locked.recovered",
        "locked.bury.gate", "locked.bury.forgotten", "locked.bury.row", "buried",
    },
    "test_life.py": {
        "sitting", "sit", "locked.register.number", "locked.register.row", "locked.register.inc", "seated", "leave",
        "left", "freeing", "freed", "saved", "unlinking", "unlinked", "create.folder", "create.config",
        "create.files", "create.claimed", "create.header", "created", "scratch.made", "scratch.marking",
        "share.copied", "share.bound", "share.filled",
    },
    "test_sleepers.py": {"notify"},
    "test_loads.py": {"load.held", "load.written"},
}  # fmt: skip


def flat() -> list[tuple]:
    """(call, index, point, operation, left) of every row."""
    return [(call, index, *row) for call, rows in ROWS.items() for index, row in enumerate(rows)]
