"""The one table of shared bytes.

A segment's ``control`` file, from byte 0 (sizes in bytes; ``cap`` is the capacity)::

    HEADER    4096      written once at creation, but for LAYOUT_* and FREED
    LOCK        64      pthread mutex (robust, process-shared)
    OP          64      OP word, its argument, ledger whose words are saved in UNDO; two counters never put back
    WORDS      512      the ring's scalar words (W_*)
    UNDO      1024      copy of WORDS and of one ledger's words, taken before OP is set
    MEMBERS   N_MEMBERS * 64       (M_*)
    JOURNAL   N_ENTRIES * 64       (J_*)
    LISTS     N_ENTRIES * LIST_SLOTS * 8    slots of list entries
    WAITERS   queue of writers that wait for slots in flight (Q_*)
    LEDGERS   N_LEDGERS * LEDGER_NBYTES     words, reservations, two queues, member counters
    --------- up to here claimed at creation (lists, ledgers above the first: when used)
    REDO      1 MiB             reserved for the redo log
    TREE      4 * cap * 10      reserved for priority trees (leaf 8, sums above them 2)
    EPISODES  cap * 32          reserved for the episode index
    STAMPS    cap * 32          claimed with the records, as the ring grows

Every word is a native int64 but for the stamps' epoch and writer and the queues' futex words
(int32). Reserved room is sparse: it costs address space only.
"""

FORMAT_VERSION = 1
MAGIC = 0x59414C5045524D53  # "SMREPLAY"

N_MEMBERS = 512
N_ENTRIES = 256
LIST_SLOTS = 128
N_LEDGERS = 8
N_TICKETS = 512
N_RESERVATIONS = 512

# header, as int64 words
H_MAGIC, H_VERSION, H_CAPACITY, H_PIDNS, H_FREED, H_CREATOR, H_LOCK_KIND, H_EVENT_KIND = range(8)
H_LAYOUT_STATE, H_LAYOUT_ROW, H_LAYOUT_INC = 8, 9, 10
H_LAYOUT_DIGEST = 12  # 4 words
H_BOOT_ID = 16  # 2 words
LAYOUT_NONE, LAYOUT_CREATING, LAYOUT_READY = range(3)

HEADER_NBYTES = 4096
LOCK = HEADER_NBYTES
OP = LOCK + 64
OP_NEXT_SEQ, OP_NEXT_WRITER = 3, 4
WORDS = OP + 64
N_WORDS = 64
UNDO = WORDS + 8 * N_WORDS
MEMBERS = UNDO + 1024
JOURNAL = MEMBERS + 64 * N_MEMBERS
LISTS = JOURNAL + 64 * N_ENTRIES
WAITERS = LISTS + 8 * LIST_SLOTS * N_ENTRIES
QUEUE_NBYTES = 64 + 64 * N_TICKETS
LEDGERS = (WAITERS + QUEUE_NBYTES + 4095) & ~4095

# one ledger
L_RESERVATIONS = 512
L_SAMPLERS = L_RESERVATIONS + 32 * N_RESERVATIONS
L_WRITERS = L_SAMPLERS + QUEUE_NBYTES
L_COUNTERS = L_WRITERS + QUEUE_NBYTES
LEDGER_NBYTES = (L_COUNTERS + 32 * N_MEMBERS + 4095) & ~4095

FIXED_NBYTES = LEDGERS + N_LEDGERS * LEDGER_NBYTES
REDO_NBYTES = 1 << 20

# the ring's words
(
    W_EPOCH,
    W_CURSOR,
    W_WRITES,
    W_EXTENT,
    W_LEN,
    W_FLOOR,
    W_OPEN,
    W_OPEN_ODD,
    W_OPEN_SLOTS,
    W_CLAIMED,
    W_NEXT_INC,
    W_SLEEPERS,
    W_GATE,
    W_GATE_ROW,
    W_GATE_INC,
    W_CLOSED,
    W_COMMITS,
    W_RECOVERIES,
    W_DEAD,
    W_N_LEDGERS,
    W_GATE_SEQ,
) = range(21)

# member rows
M_INC, M_PID, M_START, M_NAMESPACE, M_LEFT = range(5)

# journal entries; KIND is written last and cleared first
J_KIND, J_ROW, J_INC, J_EPOCH, J_START, J_COUNT, J_WHOLE, J_SEQ = range(8)
FREE, RANGE, LIST, PIN = range(4)

# stamp rows: four int64, the third split in two int32
STAMP_NBYTES = 32
S_REVISION, S_GENERATION, S_EPOCH_WRITER, S_PREVIOUS = range(4)

# queue rows; TICKET is written last and cleared first
Q_TICKET, Q_ROW, Q_INC, Q_N, Q_NEED, Q_WORD = range(6)
Q_HEADER_WAITING, Q_HEADER_NEXT = range(2)

# ledger words
(
    B_PAIR,
    B_SPARE,
    B_MIN_SIZE,
    B_MAX_AHEAD,
    B_RETURNED,
    B_RESERVED,
    B_ADMITTED,
    B_WAIT_COUNT,
    B_BASE_RETURNED,
    B_BASE_CALLS,
    B_SPARE_2,
    B_LIMITED,
) = range(12)
B_RATIOS = 16  # two pairs of numerator and denominator; B_PAIR says which holds
R_KIND, R_OWNER, R_N, R_EPOCH = range(4)  # R_KIND packs kind and a number, R_OWNER row and incarnation
R_SAMPLE, R_WRITE, R_KINDS = 1, 2, 4
C_CALLS, C_RETURNED, C_WAITS = range(3)


def stamps_offset(capacity: int) -> int:
    """Where the stamps of a segment with ``capacity`` slots begin."""
    reserved = REDO_NBYTES + 4 * 10 * capacity + 32 * capacity
    return FIXED_NBYTES + ((reserved + 4095) & ~4095)


def control_nbytes(capacity: int) -> int:
    """Length of a control file, reserved room included."""
    return stamps_offset(capacity) + ((STAMP_NBYTES * capacity + 4095) & ~4095)
