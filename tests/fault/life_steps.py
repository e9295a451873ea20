"""The steps of a buffer's life: made, shared, attached, left, freed, swept."""

import os

import scenes
import torch

import shmreplay

KINDS = ("pthread", "futex")


def create(_argument=None):
    """A shared buffer of this process; it is dropped at once, which frees it."""
    scenes.make(KINDS, written=0)


def share(_argument=None):
    """From private to shared memory, and dropped."""
    rb = scenes.make(KINDS, shared=False)
    rb.share()


def attach(path: str):
    """Join, take a seat, leave."""
    rb = shmreplay.attach(path)
    rb.stats()


def memmap(_argument=None):
    """Records in a temporary folder of our own, on the disk; dropped."""
    rb = shmreplay.ReplayBuffer(storage=shmreplay.LazyMemmapStorage(8))
    rb.extend(torch.arange(3))


def named_folder(folder: str):
    """Records in a folder that the user named; made or reopened, written to, dropped: saved beside the records."""
    storage = shmreplay.LazyMemmapStorage(8, scratch_dir=folder, existsok=True)
    rb = shmreplay.ReplayBuffer(storage=storage)
    rb.extend(torch.arange(2))


STEPS = {"create": create, "share": share, "attach": attach, "memmap": memmap, "named_folder": named_folder}


def segments(folder: str) -> list[str]:
    """What lies in the folder of the segments."""
    home = os.path.join(folder, f"shmreplay-{os.getuid()}")
    return [name for name in os.listdir(home) if not name.startswith(".")] if os.path.isdir(home) else []
