"""The peers' versions, and how each is installed: the one place where they stand."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Pin:
    """How one peer gets into a virtual environment of its own.

    Args:
        pip_steps: arguments of one ``pip install`` each, run in order.
        module: what must be importable afterwards.
        distributions: whose versions the report shows.
    """

    pip_steps: tuple[tuple[str, ...], ...]
    module: str
    distributions: tuple[str, ...]


PINS = {
    # --no-deps: the nightlies ask for a torch nightly, which is not what ours is measured with.
    "torchrl": Pin(
        pip_steps=(
            ("torch==2.13.0", "numpy"),
            ("--no-deps", "torchrl-nightly==2026.10.27", "tensordict-nightly==2026.10.26"),
            ("cloudpickle", "packaging", "orjson", "importlib_metadata", "pyvers"),
        ),
        module="torchrl.data",
        distributions=("torchrl-nightly", "tensordict-nightly", "torch", "numpy"),
    ),
    "cpprb": Pin(
        pip_steps=(("cpprb==11.0.0", "numpy"),),
        module="cpprb",
        distributions=("cpprb", "numpy"),
    ),
}

OURS_DISTRIBUTIONS = ("torch", "tensordict", "numpy")
