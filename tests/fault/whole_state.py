"""The whole shared state as one flat dict, and what it must be after a fault.

Left out, because they only count: sequence and writer numbers handed out, futex words, who held the gate last, the bound
of the conflict check, and how far above its last value a revision is (``revisions`` gives the bare numbers: none may
ever be lowered).
"""

from dataclasses import dataclass

import numpy as np

from shmreplay.shm import table

_APART = {"W_RECOVERIES", "W_DEAD", "W_NEXT_INC", "W_FLOOR", "W_GATE_ROW", "W_GATE_INC", "W_GATE_SEQ", "W_N_LEDGERS"}
_WORDS = {name: getattr(table, name) for name in dir(table) if name.startswith("W_") and name not in _APART}


def _stamp(row, row32) -> tuple:
    revision = int(row[table.S_REVISION])
    kind = "never" if revision == 0 else "odd" if revision & 1 else "even"
    return kind, int(row[table.S_GENERATION]), int(row32[4]), int(row32[5]), int(row[table.S_PREVIOUS])


def _record(storage, slot: int, stamp: tuple, epoch: int):
    if stamp[0] != "even" or stamp[2] != epoch:
        return None
    rows = storage._rows[slot].tobytes() if storage._rows is not None else b""
    return rows + b"".join(column[slot].tobytes() for column in storage._columns)


def _queue(segment, offset: int) -> tuple:
    at = offset >> 3
    rows = np.array(segment.words[at + 8 : at + 8 + 8 * table.N_TICKETS]).reshape(-1, 8)
    waiting = rows[rows[:, table.Q_TICKET] != 0]
    tickets = tuple((int(row[table.Q_N]), int(row[table.Q_NEED])) for row in waiting)
    return segment.words[at + table.Q_HEADER_WAITING], tickets


def take(rb) -> dict:
    """Every shared fact of ``rb``, by name."""
    segment, ledger = rb._segment, rb._ledger
    words = rb._ring.words
    state = {name: words[index] for name, index in _WORDS.items()}
    stamps = tuple(_stamp(segment.stamps[i], segment.stamps32[i]) for i in range(segment.capacity))
    state["stamps"] = stamps
    ready = segment.words[table.H_LAYOUT_STATE] == table.LAYOUT_READY
    digest = tuple(segment.words[table.H_LAYOUT_DIGEST : table.H_LAYOUT_DIGEST + 4])
    state["layout"] = digest if ready else None
    if ready:
        rb._storage._known_layout()
        epoch = words[table.W_EPOCH]
        state["records"] = tuple(_record(rb._storage, i, stamps[i], epoch) for i in range(segment.capacity))
    else:
        state["records"] = (None,) * segment.capacity
    entries = np.array(rb._ring.journal.rows).reshape(-1, 8)
    state["journal"] = entries[entries[:, table.J_KIND] != 0][:, [0, 3, 4, 5, 6]].tolist()
    at = (ledger.offset + table.L_RESERVATIONS) >> 3
    rows = np.array(segment.words[at : at + 4 * table.N_RESERVATIONS]).reshape(-1, 4)
    state["reservations"] = rows[rows[:, table.R_KIND] != 0][:, [0, 2, 3]].tolist()
    state["writes queue"] = _queue(segment, table.WAITERS)
    state["samplers queue"] = _queue(segment, ledger.offset + table.L_SAMPLERS)
    state["writers queue"] = _queue(segment, ledger.offset + table.L_WRITERS)
    state["ledger"] = tuple(ledger.words)
    state["calls"], _, state["waits"] = ledger.totals()
    at = table.MEMBERS >> 3
    incs = segment.words[at : at + 8 * table.N_MEMBERS : 8].tolist()
    state["members"] = sum(1 for inc in incs if inc)
    state["operation"] = segment.words[table.OP >> 3]
    return state


def revisions(rb) -> np.ndarray:
    """The revision of every slot."""
    return rb._segment.stamps[:, table.S_REVISION].copy()


def counters(rb) -> tuple[int, int]:
    """(operations recovered, owners buried)."""
    return rb._ring.words[table.W_RECOVERIES], rb._ring.words[table.W_DEAD]


@dataclass(frozen=True)
class Left:
    """What a fault leaves: the state before the call, but for what is named here.

    ``marks`` says, for each slot that the call writes and in that order, how far its stamp got: "odd" (no record),
    "generation" (that too), "marked" (all words), "" (untouched). ``after`` names what is as after the whole call.
    """

    marks: tuple = ()
    after: tuple = ()
    everything: bool = False

    def expected(self, before: dict, after: dict, slots: tuple) -> dict:
        """The whole state that must be found."""
        if self.everything:
            return after
        state = before | {name: after[name] for name in self.after}
        stamps, records = list(before["stamps"]), list(before["records"])
        for slot, mark in zip(slots, self.marks):
            if not mark:
                continue
            old, new = before["stamps"][slot], after["stamps"][slot]
            if mark == "odd":
                stamps[slot] = ("odd", *old[1:])
            elif mark == "generation":
                stamps[slot] = ("odd", new[1], *old[2:])
            else:
                stamps[slot] = ("odd", *new[1:])
            if records[slot] is not None:
                records[slot] = None
                state["W_LEN"] -= 1
        if self.marks:
            state["stamps"], state["records"] = tuple(stamps), tuple(records)
        return state


BEFORE = Left()
AFTER = Left(everything=True)


def differences(found: dict, expected: dict) -> dict:
    """What is not as expected: name -> (found, expected)."""
    return {name: (found[name], expected[name]) for name in expected if found[name] != expected[name]}
