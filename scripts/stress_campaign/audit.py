"""The account at rest: what is in the buffer against what was acknowledged, and what did not come back."""

import dataclasses
import os
import warnings
from fractions import Fraction

import numpy as np

import shmreplay
from stress_campaign import records
from stress_campaign.board import Board
from stress_campaign.workers import ACKNOWLEDGED, AMBIGUOUS, BEGUN, MAX_WRITERS, Round

_ATTEMPTS = 100  # each finds at least one of the dead


@dataclasses.dataclass
class Account:
    """What an audit found. All of `faults` must be 0."""

    kept: int = 0
    owed: int = 0
    ambiguous: int = 0
    torn: int = 0
    lost: int = 0
    doubled: int = 0
    leaked: int = 0
    holes: int = 0
    unacknowledged: int = 0
    remarks: list[str] = dataclasses.field(default_factory=list)

    def fault(self, name: str, count: int, remark: str) -> None:
        """Counts faults of one name, and says what they were."""
        if count:
            setattr(self, name, getattr(self, name) + int(count))
            self.remarks.append(f"{name}: {remark}")


def drain(buffer) -> int:
    """Samples until nothing is reserved, waits, or can be sampled; how many attempts found the dead in the way."""
    warnings.filterwarnings("ignore", "Got conflicting batch_sizes")
    for attempt in range(_ATTEMPTS):
        try:
            while (budget := buffer.stats()["sample_budget"]) > 0:
                buffer.sample(min(int(budget), 1024), wait=False)
            buffer.sample(1, wait=False)
        except RuntimeError:
            stats = buffer.stats()
            if not (stats["reserved_samples"] or stats["waiting"] or stats["sample_budget"]):
                return attempt
    return _ATTEMPTS


def audit(round_: Round, buffer, board: Board, kills: int) -> Account:
    """Accounts for a round in which `kills` writers were killed. Nobody else may use the buffer."""
    account = Account()
    if round_.samples_per_insert is not None:
        _check_budget(round_, buffer, account)
    elif len(buffer):
        buffer.sample(wait=True, timeout=5)  # passes, and removes, the dead that waited
    state = buffer.state_dict()  # also meets, and gives up, every write that the dead left open
    content, slots = state["_storage"]["_storage"], state["_storage"]["_index"].numpy()
    account.kept = len(slots)
    if len(slots):
        account.fault("torn", records.torn(content), "records at rest")
    _check_acknowledged(round_, content, slots, state["_writer"]["_generation"].numpy(), board, account)
    _check_counts(round_, buffer, board, kills, account)
    _check_leaks(buffer, account)
    return account


def _check_budget(round_: Round, buffer, account: Account) -> None:
    attempts, stats = drain(buffer), buffer.stats()
    account.fault("leaked", attempts == _ATTEMPTS, f"a budget that cannot be used up: {stats}")
    account.fault("leaked", stats["reserved_samples"], "samples reserved at rest")
    allowed = int(stats["write_count"] * Fraction(round_.samples_per_insert) // 1)
    account.fault("leaked", max(0, allowed - stats["samples_returned"]), "samples of the budget that nobody gets")


def _check_acknowledged(
    round_: Round, content, slots: np.ndarray, generations: np.ndarray, board: Board, account: Account
) -> None:
    """Each acknowledged record is in its slot, unless the slot has a later generation."""
    writers, sequences = np.full((2, round_.capacity), -1)
    generation = np.full(round_.capacity, -1)
    generation[: len(generations)] = generations[: round_.capacity]
    if len(slots):
        writers[slots], sequences[slots] = content["writer"].numpy(), content["sequence"].numpy()
        keys = (writers[slots] << 32) + sequences[slots]
        account.fault("doubled", len(keys) - len(np.unique(keys)), "records in two slots")
        strange = (sequences[slots] >= board.writers[writers[slots] % MAX_WRITERS, BEGUN]) | (sequences[slots] < 0)
        account.fault("torn", np.count_nonzero(strange), "records that nobody wrote")
    for writer in np.flatnonzero(board.writers[:, ACKNOWLEDGED]).tolist():
        acked = board.acked[writer]
        known = acked[:, 0] > 0
        current = known & (acked[:, 0] - 1 == generation)
        right = (writers == writer) & (sequences == acked[:, 1])
        account.owed += int(np.count_nonzero(current))
        account.fault("lost", np.count_nonzero(current & ~right), f"of writer {writer}")
        account.fault("lost", np.count_nonzero(known & (acked[:, 0] - 1 > generation)), "generations went back")
    account.ambiguous = int(board.writers[:, AMBIGUOUS].sum())


def _check_counts(round_: Round, buffer, board: Board, kills: int, account: Account) -> None:
    """A killed writer leaves one `extend` that it did not acknowledge: written, or given up."""
    stats, size = buffer.stats(), round_.extend_size
    beyond = stats["write_count"] - int(board.writers[:, ACKNOWLEDGED].sum())
    account.unacknowledged = beyond
    account.fault("lost", max(0, -beyond), "acknowledged records that write_count lacks")
    account.fault("doubled", max(0, beyond - kills * size), "records in write_count that nobody can have written")
    account.holes = stats["storage_size"] - stats["size"]
    account.fault("lost", max(0, account.holes - kills * size), "slots without a record, more than the dead can leave")
    account.fault("lost", abs(stats["size"] - account.kept), "records between len and content")
    buffer.storage.state.check_valid()


def _check_leaks(buffer, account: Account) -> None:
    stats = buffer.stats()
    account.fault("leaked", stats["waiting"], "calls that wait at rest")
    account.fault("leaked", stats["live_members"] - 1, "members at rest")


def left_files() -> list[str]:
    """What is left where segments lie, after a sweep: must be nothing, but for the sweep's own lock."""
    shmreplay.cleanup_stale()
    root = os.environ["SHMREPLAY_DIR"]
    return [
        os.path.join(folder, name)
        for folder, folders, names in os.walk(root)
        for name in [*names, *(name for name in folders if folder != root)]
        if name != ".lock"
    ]
