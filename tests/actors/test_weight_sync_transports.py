"""Weights through shared memory, the object store and files: one contract, and what each promises of its own."""

import math
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.weights.errors import Overwritten, Unreachable
from actors.weights.segments import HEADER, Mappings, site
from actors.weights.shipment import Route
from actors.weights.transports import ALIGN, Publisher, unpack

PULLED = ["shared_memory", "object_store", "disk"]


@pytest.fixture(params=PULLED)
def route(request, ray_session, tmp_path):
    """A route of each transport, with a bucket size of 200 bytes."""
    return Route(request.param, str(tmp_path / "weights") if request.param == "disk" else "", 200)


def some_tensors():
    import torch

    generator = torch.Generator().manual_seed(0)
    shapes = {"a": (3, 4), "b": (5,), "c": (2, 3, 2), "d": (), "e": (40, 2), "empty": (0, 3)}
    out = [(name, torch.randn(shape, generator=generator)) for name, shape in shapes.items()]
    out += [(f"{name}.bf16", tensor.to(torch.bfloat16)) for name, tensor in out]
    special = torch.tensor([math.inf, -math.inf, -0.0, 1e-40, 3e38, math.nan])
    turned = [("turned", out[0][1].T), ("strided", out[4][1][::2])]
    return [*out, ("special", special), ("special.bf16", special.to(torch.bfloat16)), *turned]


def read(shipment, mappings=None):
    """Copies of a shipment's tensors, in order."""
    with unpack(shipment, mappings or Mappings()) as pairs:
        return [(name, tensor.clone()) for name, tensor in pairs]


def assert_same(found, expected):
    import torch

    assert [name for name, _ in found] == [name for name, _ in expected]
    for (name, out), (_, tensor) in zip(found, expected, strict=True):
        assert out.dtype == tensor.dtype and out.shape == tensor.shape, name
        words = torch.int16 if tensor.dtype == torch.bfloat16 else torch.int32
        assert torch.equal(out.contiguous().view(words), tensor.contiguous().view(words)), name


# ------------------------------------------------------------------------------------------------------------- contract


def test_weights_come_out_bit_for_bit_and_in_order_three_times_in_a_row(route):
    publisher, mappings = Publisher(), Mappings()
    for version in range(3):
        tensors = [(name, tensor + version) for name, tensor in some_tensors()]
        shipment = publisher.publish(tensors, version, route)
        assert shipment.version == version
        assert shipment.size == sum(tensor.nbytes for _, tensor in tensors)
        assert_same(read(shipment, mappings), tensors)


def test_buckets_stay_below_the_limit_or_hold_one_tensor(route):
    parcels = Publisher().publish(some_tensors(), 0, route).parcels
    assert any(len(parcel.entries) > 1 for parcel in parcels)
    for parcel in parcels:
        end = parcel.entries[-1].offset + parcel.entries[-1].size
        assert sum(entry.size > 0 for entry in parcel.entries) == 1 or end - HEADER <= route.bucket_bytes
        assert all(entry.offset % ALIGN == 0 for entry in parcel.entries)


def test_no_weights_make_an_empty_shipment(route):
    shipment = Publisher().publish([], 0, route)
    assert shipment.parcels == () and read(shipment) == []


def test_a_shipment_stays_readable_while_later_versions_are_published(route):
    """Two versions are held: the third and the fourth go elsewhere."""
    publisher, kept = Publisher(), []
    for version in range(2):
        kept.append(publisher.publish([(f"w{version}", one(version))], version, route, [s.slot for s in kept]))
    for version in range(2, 5):
        publisher.publish([("w", one(version))], version, route, [s.slot for s in kept])
    for version, shipment in enumerate(kept):
        assert_same(read(shipment), [(f"w{version}", one(version))])


def one(value):
    import torch

    return torch.full((30,), float(value))


@settings(deadline=None, derandomize=True, max_examples=40)
@given(sizes=st.lists(st.integers(0, 90), min_size=1, max_size=12), bucket=st.integers(1, 400))
def test_any_sizes_and_any_bucket_size_give_the_same_weights(sizes, bucket):
    import torch

    tensors = [(f"t{i}", torch.arange(size, dtype=torch.float32) + i) for i, size in enumerate(sizes)]
    publisher = Publisher()
    assert_same(read(publisher.publish(tensors, 1, Route("shared_memory", "", bucket))), tensors)


# --------------------------------------------------------------------------------------------- shared memory of its own


def test_memory_is_reused_and_not_copied_to_be_read():
    """The reader's tensors are the mapping itself: what is published next in the same slot shows through them."""
    publisher, mappings = Publisher(), Mappings()
    first = publisher.publish([("w", one(1))], 1, Route())
    with pytest.raises(Overwritten, match=r"version 1 is gone.* holds version 2"), unpack(first, mappings) as pairs:
        tensor = dict(pairs)["w"]
        second = publisher.publish([("w", one(2))], 2, Route())
        assert tensor[0] == 2.0
    assert (second.slot, second.parcels[0].place) == (first.slot, first.parcels[0].place)
    with pytest.raises(Overwritten):
        read(first, mappings)
    assert_same(read(second, mappings), [("w", one(2))])


def test_a_version_that_is_being_written_is_not_read():
    publisher = Publisher()
    shipment = publisher.publish([("w", one(1))], 1, Route())

    def interrupted():
        yield "w", one(2)
        read(shipment)

    with pytest.raises(Overwritten, match="is being written"):
        publisher.publish(interrupted(), 2, Route())


def test_a_larger_tensor_gets_a_larger_segment():
    """Segments that are given up free their descriptors, whose numbers the next ones get."""
    publisher, mappings = Publisher(), Mappings()
    for version, length in enumerate((10, 1000, 500, 5000, 50000)):
        tensors = [("w", one(version).repeat(length))]
        assert_same(read(publisher.publish(tensors, version, Route("shared_memory", "", 64)), mappings), tensors)


def test_another_process_reads_the_memory_and_nothing_stays_behind_under_dev_shm():
    before = set(os.listdir("/dev/shm"))
    publisher = Publisher()
    shipment = publisher.publish([("w", one(7))], 1, Route())
    code = (
        "import sys, pickle\n"
        "from actors.weights.segments import Mappings; from actors.weights.transports import unpack\n"
        "with unpack(pickle.load(sys.stdin.buffer), Mappings()) as pairs:\n"
        "    print({name: tensor.tolist() for name, tensor in pairs})"
    )
    ran = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(shipment), capture_output=True, check=True)
    assert ran.stdout.decode().strip() == str({"w": [7.0] * 30})
    assert set(os.listdir("/dev/shm")) <= before


def test_the_memory_of_a_process_that_is_gone_is_unreachable():
    code = (
        "import sys, pickle, torch; from actors.weights.transports import Publisher\n"
        "from actors.weights.shipment import Route\n"
        "sys.stdout.buffer.write(pickle.dumps(Publisher().publish([('w', torch.ones(3))], 1, Route())))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    with pytest.raises(Unreachable, match=r"/proc/.*one container of one node.*object_store"):
        read(pickle.loads(ran.stdout))


def test_the_memory_of_another_learner_at_the_same_place_is_refused():
    """Process ids and descriptors come round again: a segment says whose it is."""
    publisher = Publisher()
    shipment = publisher.publish([("w", one(1))], 1, Route())
    object.__setattr__(shipment, "publisher", "f" * 32)
    with pytest.raises(Unreachable, match="does not hold the weights of learner ffff"):
        read(shipment)


def test_processes_of_one_machine_are_at_one_site():
    code = "from actors.weights.segments import site; print(site())"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert ran.stdout.strip() == site()


# ----------------------------------------------------------------------------------------------------------- disk, push


def test_files_of_versions_that_nobody_holds_are_deleted(tmp_path):
    publisher, route = Publisher(), Route("disk", str(tmp_path), 200)
    first = publisher.publish(some_tensors(), 1, route)
    second = publisher.publish(some_tensors(), 2, route, [first.slot])
    assert len(list(tmp_path.iterdir())) == 2
    third = publisher.publish(some_tensors(), 3, route, [second.slot])
    assert not Path(first.parcels[0].place).exists()
    for shipment in (second, third):
        assert_same(read(shipment), some_tensors())
    with pytest.raises(Unreachable):
        read(first)


def test_a_file_has_only_the_bytes_used(tmp_path):
    parcel = Publisher().publish([("w", one(1))], 1, Route("disk", str(tmp_path))).parcels[0]
    assert Path(parcel.place).stat().st_size < HEADER + 120 + ALIGN


@pytest.mark.parametrize("transport", ["nccl", "ipc"])
def test_pushed_weights_are_not_published(transport):
    with pytest.raises(ValueError, match=f"sync.transport = {transport} sends"):
        Publisher().publish([], 0, Route(transport))
