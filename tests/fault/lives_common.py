"""Records whose fields agree, and what a process can say about a buffer and itself."""

import torch
from tensordict import TensorDict


def pairs(low: int, high: int, width: int = 4) -> TensorDict:
    """Records whose fields all hold one number; ``obs`` is of ``width`` float32."""
    x = torch.arange(low, high)
    obs = x.to(torch.float32)[:, None].expand(-1, width).contiguous()
    return TensorDict({"x": x, "y": x.clone(), "obs": obs}, [high - low])


def torn(sample) -> int:
    """How many records have fields that disagree."""
    x = sample["x"]
    wrong = (x != sample["y"]) | (sample["obs"] != x[:, None].to(torch.float32)).any(1)
    return int(wrong.sum())


def whole(buffer) -> dict:
    """All that can be told about a buffer: what must not change when a call is refused."""
    records = buffer[:] if len(buffer) else None
    assert records is None or not torn(records)
    stats = buffer.stats()
    return {
        "len": len(buffer),
        "write_count": buffer.write_count,
        "x": records["x"].tolist() if records is not None else [],
        "generations": buffer.storage.generations(torch.arange(buffer.storage.max_size).numpy()).tolist(),
        "stats": {name: value for name, value in stats.items() if name not in ("live_members", "recovered")},
        "cursor": buffer.storage.cursor,
    }


def rss_private() -> int:
    """Bytes of memory that only this process has and that are not a file's."""
    with open("/proc/self/smaps_rollup") as file:
        values = {line.split(":")[0]: line.split()[1] for line in file if line.strip().endswith("kB")}
    return 1024 * int(values["Anonymous"])
