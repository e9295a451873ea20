"""Records to bytes and back: every dtype, structure and refusal, and the fast paths against the general ones."""

from __future__ import annotations

import collections
import random
import threading

import numpy as np
import pytest
import torch
from tensordict import (
    LazyStackedTensorDict,
    NonTensorData,
    TensorClass,
    TensorDict,
    is_tensorclass,
    lazy_stack,
    tensorclass,
)
from torch.utils._pytree import tree_map

from shmreplay.errors import LayoutTypeError
from shmreplay.records import RecordLayout
from shmreplay.records import assembly
from shmreplay.records.dtypes import _CARDS

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf")
DTYPES = list(_CARDS)


@tensorclass
class Step:
    obs: torch.Tensor
    reward: torch.Tensor
    extra: torch.Tensor | None = None


class Typed(TensorClass):
    obs: torch.Tensor
    step: Step


Pair = collections.namedtuple("Pair", "left right")


def random_tensor(rng: random.Random, dtype: torch.dtype, shape: tuple) -> torch.Tensor:
    """Random bits of a dtype (0 and 1 only for bool), so NaNs of all kinds are among them."""
    count = int(np.prod(shape, dtype=np.int64))
    raw = bytes(rng.randrange(2 if dtype is torch.bool else 256) for _ in range(count * dtype.itemsize))
    if not raw:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(dtype).reshape(shape)


def bits(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def assert_same(found, expected, device=torch.device("cpu")) -> None:
    """Same structure, types, shapes, batch sizes and bits; private contiguous CPU tensors."""
    if isinstance(expected, torch.Tensor):
        assert type(found) is torch.Tensor and found.is_contiguous() and not found.requires_grad
        assert (found.dtype, found.shape, found.device.type) == (expected.dtype, expected.shape, "cpu")
        assert bits(found) == bits(expected)
    elif is_tensorclass(expected):
        assert type(found) is type(expected)
        assert_same(found._tensordict, expected._tensordict, device)
    elif hasattr(expected, "batch_size"):
        assert type(found) is TensorDict and found.batch_size == expected.batch_size
        assert found.device == device and not found.is_locked
        assert set(found.keys()) == set(expected.keys())
        for key in expected.keys():
            assert_same(found.get(key), expected.get(key), device)
    elif isinstance(expected, dict):
        assert type(found) is type(expected) and list(found) == list(expected)
        for key in expected:
            assert_same(found[key], expected[key], device)
    else:
        assert type(found) is type(expected) and len(found) == len(expected)
        for one, other in zip(found, expected):
            assert_same(one, other, device)


def fill(layout, staged, picks):
    chunk = layout.allocate(len(picks))
    if chunk.rows is not None:
        chunk.rows[:] = staged.rows[picks]
    for target, source in zip(chunk.columns, staged.columns, strict=True):
        target.numpy()[:] = source[picks]
    return chunk


def check_bytes(layout, staged) -> None:
    """Shapes, contiguity, and zeros wherever no field is."""
    assert len(staged.columns) == len(layout.columns)
    for array, column in zip(staged.columns, layout.columns):
        assert array.dtype == np.uint8 and array.shape == (staged.n, column.nbytes) and array.flags.c_contiguous
    if not layout.row_nbytes:
        assert staged.rows is None
        return
    assert staged.rows.dtype == np.uint8 and staged.rows.flags.c_contiguous
    assert staged.rows.shape == (staged.n, layout.row_nbytes)
    used = np.zeros(layout.row_nbytes, bool)
    for field in layout.fields:
        where, offset = field.where
        if where == "row":
            assert offset % field.dtype.itemsize == 0 and not used[offset : offset + field.nbytes].any()
            used[offset : offset + field.nbytes] = True
    assert not staged.rows[:, ~used].any()
    assert layout.row_nbytes % (64 if used.nonzero()[0].max() >= 63 else 8) == 0


def round_trip(data, expected=None, picks=None, ignore=frozenset()):
    """Batched data through bytes, by a layout that went through JSON too."""
    expected = data if expected is None else expected
    layout = RecordLayout.of(data, batched=True, ignore=ignore)
    assert RecordLayout.from_json(layout.to_json()) == layout
    n = layout.batch_size_of(data)
    for each in (layout, RecordLayout.from_json(layout.to_json())):
        staged = each.stage(data, batched=True)
        assert staged.n == n
        check_bytes(each, staged)
        assert_same(each.build(fill(each, staged, list(range(n)))), expected)
    return layout


def w1(n: int) -> TensorDict:
    source = {"obs": torch.randn(n, 17), "next_obs": torch.randn(n, 17), "action": torch.randn(n, 6)}
    return TensorDict({**source, "reward": torch.randn(n, 1), "done": torch.rand(n, 1) > 0.5}, [n])


# --- round trips -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 1, 5), (3, 400)], ids=str)
def test_every_dtype(dtype, shape):
    rng = random.Random(str(dtype) + str(shape))
    value = random_tensor(rng, dtype, (4, *shape))
    data = TensorDict({"x": value, "nested": {"y": value.clone()}}, [4])
    layout = round_trip(data)
    round_trip(value)
    large = dtype.itemsize * int(np.prod(shape)) >= 1024
    where = "column" if large else "empty" if 0 in shape else "row"
    assert [field.where[0] for field in layout.fields] == [where] * 2
    one = RecordLayout.of(data[1], batched=False)
    assert one == layout
    assert_same(one.build_one(fill(one, one.stage(data[1], batched=False), [0])), data[1])


def test_all_storable_torch_dtypes_are_covered():
    every = {getattr(torch, name) for name in dir(torch) if isinstance(getattr(torch, name), torch.dtype)}
    left_out = {str(dtype) for dtype in every - set(DTYPES)}
    assert not {name for name in left_out if not name.startswith(("torch.q", "torch.bit", "torch.int", "torch.uint"))}


def test_w1_row():
    layout = round_trip(w1(32))
    assert (layout.kind, layout.row_nbytes, layout.columns) == ("tensordict", 192, ())
    staged = layout.stage(batch := w1(9), batched=True)
    assert_same(layout.build(fill(layout, staged, [8, 0, 0])), batch[torch.tensor([8, 0, 0])])


def test_nested_batch_dims_are_kept_per_node():
    inner = TensorDict({"a": torch.randn(5, 3, 2)}, [5, 3])
    data = TensorDict({"n": inner, "deep": {"er": {"x": torch.randn(5, 1)}}}, [5])
    layout = round_trip(data)
    assert layout.build(layout.allocate(2))["n"].batch_size == (2, 3)
    assert layout.build_one(layout.allocate(1))["n"].batch_size == (3,)
    root = TensorDict({"x": torch.randn(5, 3, 2)}, [5, 3])
    assert round_trip(root).build(round_trip(root).allocate(2)).batch_size == (2, 3)
    assert_same(layout.build_one(fill(layout, layout.stage(data[3], batched=False), [0])), data[3])


def test_tensorclass_root_and_nested():
    step = Step(obs=torch.randn(4, 3), reward=torch.randn(4), batch_size=[4])
    typed = Typed(obs=torch.randn(4, 300), step=step, batch_size=[4])
    for data in (step, typed):
        layout = round_trip(data)
        assert layout.kind == "tensorclass"
        one = layout.build_one(fill(layout, layout.stage(data[2], batched=False), [0]))
        assert_same(one, data[2])
    assert round_trip(TensorDict({"s": step}, [4])).kind == "tensordict"
    built = RecordLayout.of(step, batched=True)
    built = built.build(fill(built, built.stage(step, batched=True), [0]))
    assert built.extra is None and built.reward.shape == (1,)
    with pytest.raises(LayoutTypeError, match="Step"):
        RecordLayout.of(step, batched=True).stage(step._tensordict, batched=True)


def test_pytrees():
    tree = {
        "a": (torch.randn(3, 2), [torch.arange(3), {"deep": torch.rand(3, 1) > 0.5, 7: torch.randn(3, 300)}]),
        "p": Pair(torch.randn(3), TensorDict({"x": torch.randn(3)}, [3])),
        "o": collections.OrderedDict(z=torch.arange(3), b=torch.arange(3)),
    }
    layout = round_trip(tree)
    assert layout.kind == "pytree" and layout.field_index(("a", 1, 1, "deep")) >= 0
    one = (torch.tensor(1), {"x": np.arange(3, dtype=np.int16)}, 2.5, True)
    single = RecordLayout.of(one, batched=False)
    built = single.build_one(fill(single, single.stage(one, batched=False), [0]))
    assert_same(built, (one[0], {"x": torch.arange(3, dtype=torch.int16)}, torch.tensor(2.5), torch.tensor(True)))


def test_plain_tensor_numpy_and_number():
    assert round_trip(torch.randn(4, 3)).kind == "tensor"
    array = np.arange(12, dtype=">f4").astype("f4").reshape(4, 3)
    array.flags.writeable = False
    round_trip(array, torch.from_numpy(array.copy()))
    round_trip(array[::-1], torch.from_numpy(array[::-1].copy()))
    layout = RecordLayout.of(3, batched=False)
    assert layout.fields[0].key == () and layout.fields[0].dtype is torch.int64


def test_no_small_field_means_no_row():
    layout = round_trip(TensorDict({"x": torch.randn(3, 512)}, [3]))
    assert layout.row_nbytes == 0 and layout.allocate(2).rows is None
    assert round_trip(torch.empty(3, 0)).row_nbytes == 0


def test_ignored_keys_are_left_out_at_the_root_only():
    data = w1(4).set("index", torch.arange(4)).set("sub", TensorDict({"index": torch.arange(4)}, [4]))
    layout = RecordLayout.of(data, batched=True, ignore=frozenset({"index"}))
    expected = data.exclude("index")
    for given in (data, expected, data.copy().set("index", NonTensorData("any", batch_size=[4]))):
        assert_same(layout.build(fill(layout, layout.stage(given, batched=True), [0, 1, 2, 3])), expected)
    assert layout != RecordLayout.of(expected, batched=True)


def random_structure(rng: random.Random, n: int, depth: int, in_td: bool = False):
    kind = rng.choice(["leaf", "leaf", "td"] if in_td else ["leaf", "td", "dict", "tuple", "list", "pair", "tc"])
    if depth == 0 or kind == "leaf":
        shape = rng.choice([(), (1,), (3,), (2, 2), (0,), (130, 9), (7, 1)])
        return random_tensor(rng, rng.choice(DTYPES), (n, *shape))
    children = [random_structure(rng, n, depth - 1, kind in ("td", "tc")) for _ in range(rng.randint(1, 4))]
    if kind == "td":
        return TensorDict({f"k{rng.random()}": child for child in children}, [n])
    if kind == "tc":
        return Step(obs=children[0], reward=children[-1], batch_size=[n])
    if kind == "dict":
        return {rng.choice([f"k{rng.random()}", rng.randrange(10**6)]): child for child in children}
    if kind == "pair":
        return Pair(children[0], children[-1])
    return tuple(children) if kind == "tuple" else children


@pytest.mark.parametrize("seed", range(60))
def test_random_structures(seed):
    rng = random.Random(seed)
    n = rng.randint(1, 6)
    if seed % 2:
        data = TensorDict({"root": random_structure(rng, n, 3, True)}, [n])
        last = data[n - 1]
    else:
        data = {"root": random_structure(rng, n, 4)}
        last = tree_map(lambda leaf: leaf[n - 1], data, is_leaf=lambda value: hasattr(value, "batch_size"))
    layout = round_trip(data)
    staged = layout.stage(data, batched=True)
    batched = [bytes(part[n - 1]) for part in (staged.rows, *staged.columns) if part is not None]
    single = layout.stage(last, batched=False)
    assert batched == [bytes(part[0]) for part in (single.rows, *single.columns) if part is not None]
    assert_same(layout.build_one(fill(layout, single, [0])), last)
    assert RecordLayout.of(last, batched=False) == layout
    twice = layout.build(fill(layout, layout.stage(last, batched=False), [0, 0]))
    assert_same(RecordLayout.stack([last, last]), twice, None)


# --- inputs of every make ----------------------------------------------------------------------------------------


def test_views_grads_and_bits_that_are_not_in_memory():
    base = torch.randn(6, 8, 40)
    complex_base = torch.randn(4, 40, dtype=torch.complex64)
    half = torch.randn(4, 8, dtype=torch.float32).to(torch.float16).view(torch.complex32)
    data = {
        "transposed": base.transpose(0, 2)[:4],
        "expanded": torch.arange(3).expand(4, 3),
        "expanded_large": torch.randn(1, 900).expand(4, 900),
        "strided": base.reshape(6, -1)[:4, ::3],
        "grad": torch.randn(4, 2, requires_grad=True),
        "grad_large": torch.nn.Parameter(torch.randn(4, 600)),
        "conj": complex_base.conj(),
        "conj_half": half.conj(),
        "neg": complex_base.conj().imag,
        "bfloat": torch.randn(9, 4).to(torch.bfloat16).t(),
    }
    assert data["conj"].is_conj() and data["neg"].is_neg() and data["conj_half"].is_conj()
    halves = half.view(torch.float16).clone()
    halves[:, 1::2].neg_()
    plain = {key: value.detach().contiguous() for key, value in data.items() if "conj" not in key and key != "neg"}
    plain.update(conj=data["conj"].resolve_conj().contiguous(), neg=data["neg"].resolve_neg().contiguous())
    plain.update(conj_half=halves.view(torch.complex32))
    for key in data:
        round_trip(data[key], plain[key])
    layout = RecordLayout.of(TensorDict(plain, [4]), batched=True)
    staged = layout.stage(TensorDict(data, [4]), batched=True)
    assert_same(layout.build(fill(layout, staged, [0, 1, 2, 3])), TensorDict(plain, [4]))


def test_kinds_of_tensordict(tmp_path):
    data = TensorDict({"a": torch.randn(4, 3), "n": {"b": torch.arange(4)}}, [4])
    parts = [data[i].clone() for i in range(4)]
    kinds = [data.clone().lock_(), lazy_stack(parts), torch.stack(parts), LazyStackedTensorDict(*parts, stack_dim=0)]
    kinds += [lazy_stack([part.unsqueeze(0) for part in parts], 1)[0]]
    kinds += [data.memmap(tmp_path), data.clone().share_memory_()]
    for given in kinds:
        round_trip(given, data)
    steps = [Step(obs=torch.randn(2), reward=torch.randn(()), batch_size=[]) for _ in range(3)]
    round_trip(lazy_stack(steps), torch.stack(steps))
    assert_same(RecordLayout.stack(parts), data, None)
    assert_same(RecordLayout.stack(steps), torch.stack(steps), None)


def test_columns_alias_contiguous_input():
    data = TensorDict({"x": torch.randn(3, 512)}, [3])
    staged = RecordLayout.of(data, batched=True).stage(data, batched=True)
    assert staged.columns[0].ctypes.data == data["x"].data_ptr()


def test_built_columns_are_the_chunks_memory():
    layout = RecordLayout.of(torch.zeros(3, 20, 30), batched=True)
    chunk = layout.allocate(2)
    assert chunk.columns[0].shape == (2, 2400) and layout.build(chunk).data_ptr() == chunk.columns[0].data_ptr()


# --- fast paths --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("nested", [True, False])
def test_plain_path_equals_general_path(batched, nested):
    data = w1(5).set("pixels", torch.randn(5, 30, 40)).set("half", torch.randn(5, 3).to(torch.bfloat16))
    data = TensorDict({"now": data, "x": {"y": {"z": torch.arange(5)}}}, [5]) if nested else data
    layout = RecordLayout.of(data, batched=True)
    given = data if batched else data[2]
    fast = layout._stager.stage_plain(given, batched)
    assert fast is not None
    kept = (fast.n, fast.rows.tobytes(), [column.tobytes() for column in fast.columns])
    general = layout._stage_any(given, batched)
    assert kept == (general.n, general.rows.tobytes(), [column.tobytes() for column in general.columns])


def test_plain_path_takes_tensorclasses():
    step = Step(obs=torch.randn(4, 3), reward=torch.randn(4), batch_size=[4])
    layout = RecordLayout.of(step, batched=True)
    fast = layout._stager.stage_plain(step, True).rows.tobytes()
    assert fast == layout._stage_any(step, True).rows.tobytes()
    assert layout._stager.stage_plain(step._tensordict, True) is None


def test_public_constructor_builds_the_same(monkeypatch):
    data = w1(4).set("n", TensorDict({"a": torch.randn(4, 2, 3)}, [4, 2]))
    monkeypatch.setattr(assembly, "new_tensordict", assembly._tensordict_public)
    monkeypatch.setattr("shmreplay.records.building.new_tensordict", assembly._tensordict_public)
    round_trip(data)
    round_trip(w1(4))
    round_trip(Step(obs=torch.randn(4, 3), reward=torch.randn(4), batch_size=[4]))


def test_packing_on_the_device_equals_packing_here():
    data = w1(5).set("c", torch.randn(5, 2, dtype=torch.complex64)).set("h", torch.randn(5, 3).to(torch.bfloat16))
    layout = RecordLayout.of(data, batched=True)
    rows = layout._stager._packed_on_device([data.get(f.key) for f in layout._stager._row_fields], 5)
    assert np.array_equal(rows.numpy(), layout.stage(data, batched=True).rows)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_input():
    data = w1(5).set("pixels", torch.randn(5, 30, 40))
    layout = RecordLayout.of(data.to("cuda"), batched=True)
    assert_same(layout.build(fill(layout, layout.stage(data.to("cuda"), batched=True), list(range(5)))), data)


def test_staging_buffer_grows_is_used_again_and_stays_clean():
    layout = RecordLayout.of(w1(1), batched=True)
    for n in [1, 5, 3, 200, 5, 40_000, 2, *range(1, 80), 5]:
        data = w1(n)
        staged = layout.stage(data, batched=True)
        check_bytes(layout, staged)
        assert_same(layout.build(fill(layout, staged, [n - 1])), data[n - 1 : n])
    assert layout._stager._kept.buffer.size <= 4 << 20 and len(layout._stager._kept.plans) <= 64


def test_threads_do_not_share_the_staging_buffer():
    layout = RecordLayout.of(w1(1), batched=True)
    rows = layout.stage(data := w1(4), batched=True).rows
    thread = threading.Thread(target=lambda: layout.stage(w1(4), batched=True))
    thread.start()
    thread.join()
    assert rows.tobytes() == layout._stage_any(data, True).rows.tobytes()


@pytest.mark.parametrize("n", [1, 7])
def test_outline_is_finished_to_what_build_makes(n):
    batch = TensorDict(
        {
            "a": torch.randn(n, 3),
            "b": {"c": torch.arange(n), "h": torch.randn(n, 2).bfloat16()},
            "big": torch.randint(0, 255, (n, 2000), dtype=torch.uint8),
            "none": torch.zeros(n, 0),
        },
        [n],
    )
    for data in (batch, batch.select("a"), torch.randn(n, 4), (torch.arange(n), {"x": torch.randn(n, 600)})):
        layout = RecordLayout.of(data, batched=True)
        outline, chunk = layout.outline(n), layout.allocate(n)
        staged = layout.stage(data, batched=True)
        for target in (outline.chunk, chunk):
            if staged.rows is not None:
                target.rows[:] = staged.rows
            for column, source in zip(target.columns, staged.columns):
                column.numpy()[:] = source
        built, finished = layout.build(chunk), layout.finish(outline)
        expected, found = (torch.utils._pytree.tree_leaves(tree) for tree in (built, finished))
        assert type(built) is type(finished)
        for one, other in zip(expected, found, strict=True):
            if isinstance(one, torch.Tensor):
                assert one.dtype == other.dtype and torch.equal(one, other) and other.is_contiguous()
            else:
                assert (one == other).all() and one.batch_size == other.batch_size


def test_outline_takes_further_entries_where_the_root_is_flat():
    more = {"index": torch.arange(2)}
    flat = RecordLayout.of(TensorDict({"a": torch.zeros(2)}, [2]), batched=True).outline(2, more)
    assert flat.has_more and flat.data["index"] is more["index"]
    nested = RecordLayout.of(TensorDict({"a": {"b": torch.zeros(2)}}, [2]), batched=True).outline(2, more)
    assert not nested.has_more and "index" not in nested.data.keys()
