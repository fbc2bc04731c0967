"""The cache of finished items: the same stream at a fraction of the time, and never a wrong item."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from environments.base import Failure, Task
from environments.mapf_frozenlake import MapfFrozenLake, item_cache
from environments.mapf_frozenlake.generator import Items
from environments.mapf_frozenlake.item_cache import ItemCache
from environments.mapf_frozenlake.labeller import InProcessLabeller, LabelFailure
from environments.mapf_frozenlake.settings import MapfKnobs, MapfRow, MapfSettings


class Counting:
    """A labeller that counts what it is asked, or refuses."""

    def __init__(self, broken: bool = False) -> None:
        self.boards, self.broken = 0, broken

    def label(self, payloads: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any] | Failure]:
        self.boards += len(payloads)
        if self.broken:
            return [Failure("infrastructure", "no solver")] * len(payloads)  # type: ignore[arg-type]
        return InProcessLabeller().label(payloads)


def environment(folder: Path, labeller: Counting | None = None, **settings: Any) -> MapfFrozenLake:
    env = MapfFrozenLake(MapfSettings(**{"sizes": (3, 4), **settings}), labeller)
    env.cache = ItemCache(folder)
    return env


def drawn(env: MapfFrozenLake, start: int = 0, count: int = 200, **key: Any) -> list[Task]:
    return env.generate(env.default_knobs(), key.pop("seed", 1), start, count, **key)


def parts(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*.parquet"))


def test_a_second_pass_asks_for_no_label_and_gives_the_same_items(tmp_path: Path) -> None:
    expected = drawn(MapfFrozenLake(MapfSettings(sizes=(3, 4))))
    assert drawn(environment(tmp_path)) == expected
    second = Counting(broken=True)
    assert drawn(environment(tmp_path, second)) == expected and second.boards == 0
    report = environment(tmp_path, second).generation_report(environment(tmp_path).default_knobs(), 1, 0, 200)
    plain = MapfFrozenLake(MapfSettings(sizes=(3, 4)))
    assert report == plain.generation_report(plain.default_knobs(), 1, 0, 200) and second.boards == 0


def test_a_second_pass_is_over_twenty_times_faster(tmp_path: Path) -> None:
    env = environment(tmp_path, sizes=(6, 8, 10))
    knobs = MapfKnobs(strata={name: MapfRow(wait_ratio=50) for name in env.stratum_names()})
    env.feasibility(knobs)
    times = []
    for _ in range(4):
        began = time.perf_counter()
        env.generate(knobs, 1, 0, 2_000)
        times.append(time.perf_counter() - began)
    assert min(times[1:]) * 20 < times[0]


def test_only_what_is_missing_is_worked_out_and_kept(tmp_path: Path) -> None:
    expected = drawn(MapfFrozenLake(MapfSettings(sizes=(3, 4))), 0, 500)
    env = environment(tmp_path)
    assert drawn(env, 100, 100) == expected[100:200]
    assert drawn(env, 300, 100) == expected[300:400]
    assert drawn(env, 0, 500) == expected
    (folder,) = tmp_path.iterdir()
    assert parts(folder) == ["0-99.parquet", "100-199.parquet", "200-299.parquet", "300-399.parquet", "400-499.parquet"]
    assert drawn(env, 150, 300) == expected[150:450] and len(parts(folder)) == 5


def test_ranges_of_two_writers_may_overlap(tmp_path: Path) -> None:
    expected = drawn(MapfFrozenLake(MapfSettings(sizes=(3, 4))), 0, 300)
    stream, cache = ("knobs", 0), ItemCache(tmp_path)
    rows = [task.payload for task in expected]
    for first, last in ((0, 150), (100, 250), (180, 300)):
        cache.write(stream, Items(first, ["3x3"] * (last - first), rows[first:last], [1] * (last - first)))
    found = cache.read(stream, 20, 270)
    assert [items.first for items in found] == [20, 150, 250]
    assert [payload for items in found for payload in items.payloads] == rows[20:290]


def test_another_stream_or_another_code_shares_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = environment(tmp_path)
    first = drawn(env)
    others = [
        drawn(env, seed=2),
        drawn(env, split="warm"),
        drawn(env, stage=1),
        drawn(environment(tmp_path, objective="sum_of_costs")),
        drawn(environment(tmp_path, agents=3)),
    ]
    assert all(other != first for other in others) and len(list(tmp_path.iterdir())) == 6
    monkeypatch.setattr(item_cache, "code_digest", lambda: "other")
    drawn(env)
    assert len(list(tmp_path.iterdir())) == 7


def test_a_damaged_file_is_reported_once_ignored_and_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    env = environment(tmp_path)
    expected = drawn(env)
    (part,) = tmp_path.rglob("*.parquet")
    good = part.read_bytes()
    middle = len(good) // 2
    for damage in (b"", b"PAR1", good[:-9], good[:middle] + bytes([good[middle] ^ 255]) + good[middle + 1 :]):
        part.write_bytes(damage)
        caplog.clear()
        fresh = environment(tmp_path)
        with caplog.at_level(logging.WARNING):
            assert drawn(fresh) == expected
            part.write_bytes(damage)
            assert drawn(fresh) == expected
        assert len(caplog.records) == 1 and "damaged" in caplog.text
        assert drawn(environment(tmp_path, Counting(broken=True))) == expected, "the damaged file was replaced"
    os.rename(part, part.with_name("0-99.parquet"))
    assert drawn(environment(tmp_path)) == expected, "a file that holds another range than its name is not believed"


def test_a_stream_that_stops_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(LabelFailure):
        drawn(environment(tmp_path / "cache", Counting(broken=True)))
    assert not (tmp_path / "cache").exists()


def test_a_folder_that_cannot_be_written_is_done_without(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    env = environment(tmp_path / "file" / "labels")
    expected = drawn(MapfFrozenLake(MapfSettings(sizes=(3, 4))))
    assert drawn(env) == expected == drawn(env)
    assert len(caplog.records) == 1 and "cannot keep labelled boards" in caplog.text


def test_the_oldest_files_go_when_the_limit_is_passed(tmp_path: Path) -> None:
    env = environment(tmp_path)
    for position, start in enumerate((0, 100, 200)):
        drawn(env, start, 100)
        (newest,) = tmp_path.rglob(f"{start}-*.parquet")
        os.utime(newest, (position, position))
    size = sum(path.stat().st_size for path in tmp_path.rglob("*.parquet"))
    env.cache = ItemCache(tmp_path, limit_bytes=size + size // 10)
    drawn(env, 300, 100)
    assert parts(tmp_path) == ["100-199.parquet", "200-299.parquet", "300-399.parquet"]


def test_a_few_items_are_worked_out_and_a_variable_names_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(item_cache.VARIABLE, raising=False)
    assert MapfFrozenLake().cache is None
    monkeypatch.setenv(item_cache.VARIABLE, str(tmp_path))
    env = MapfFrozenLake(MapfSettings(sizes=(3,)))
    drawn(env, 0, item_cache.FEWEST - 1)
    assert not parts(tmp_path)
    drawn(env, 0, item_cache.FEWEST)
    assert parts(tmp_path)
