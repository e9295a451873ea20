"""What the records look like. numpy only: every contestant's interpreter has it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Workload:
    """One record layout, its capacities and the operations that are measured on it."""

    name: str
    fields: dict[str, tuple[str, tuple[int, ...]]]
    capacity: int
    quick_capacity: int
    operations: tuple[str, ...]
    fill_count: int
    many_processes: bool = False

    def record_nbytes(self) -> int:
        import numpy as np

        return sum(np.dtype(dtype).itemsize * int(np.prod(shape)) for dtype, shape in self.fields.values())

    def records(self, count: int, seed: int = 0) -> dict:
        """Return ``count`` records as numpy arrays, one per field, shape (count, *field shape)."""
        import numpy as np

        rng = np.random.default_rng(seed)
        return {name: _values(rng, dtype, (count, *shape)) for name, (dtype, shape) in self.fields.items()}


def _values(rng, dtype: str, shape: tuple[int, ...]):
    if dtype == "float32":
        return rng.standard_normal(shape, dtype="float32")
    if dtype == "bool":
        return rng.random(shape) < 0.01
    return rng.integers(0, 200, shape).astype(dtype)


WORKLOADS = {
    "W1": Workload(
        name="W1",
        fields={
            "obs": ("float32", (17,)),
            "next_obs": ("float32", (17,)),
            "action": ("float32", (6,)),
            "reward": ("float32", (1,)),
            "done": ("bool", (1,)),
        },
        capacity=1_000_000,
        quick_capacity=100_000,
        operations=("add", "extend 32", "extend 256", "sample 256"),
        fill_count=10_000,
        many_processes=True,
    ),
    "W2": Workload(
        name="W2",
        fields={
            "obs": ("uint8", (4, 84, 84)),
            "next_obs": ("uint8", (4, 84, 84)),
            "action": ("int64", (1,)),
            "reward": ("float32", (1,)),
            "done": ("bool", (1,)),
        },
        capacity=20_000,
        quick_capacity=2_000,
        operations=("extend 16", "sample 32", "sample 256"),
        fill_count=200,
    ),
}
