"""Rows of a file or folder that somebody else wrote, and the values at a path in them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

SUFFIXES = (".parquet", ".arrow", ".jsonl", ".json")
"""Of a folder, the files with the first of these that occurs are read, in the order of their names."""
NO_DATA = ("dataset_info.json", "dataset_dict.json", "dataset_infos.json", "state.json")
"""What Hugging Face puts beside the data."""


class ForeignBoardsError(ValueError):
    """The data cannot be used; the message says where and why."""


Row = tuple[str, dict[str, Any]]
"""(where it is, for messages; the object)."""


def read_rows(path: Path) -> list[Row]:
    """Every row of a file, or of the data files in a folder. Raises ForeignBoardsError, also for no rows."""
    rows = [row for file in _files(path) for row in _rows(file)]
    if not rows:
        raise ForeignBoardsError(f"{path}: it holds no rows; give a file with one object for each board")
    return rows


def at(where: str, row: Mapping[str, Any], field: str, path: str) -> Any:
    """The value at a path such as ``board.size`` or ``agents[].start``; texts that hold JSON are looked into."""
    return _follow(where, row, field, path, path.split("."))


def _follow(where: str, value: Any, field: str, path: str, keys: list[str]) -> Any:
    for position, key in enumerate(keys):
        name = key.removesuffix("[]")
        if isinstance(value, str):
            value = _parsed(value)
        if not isinstance(value, Mapping) or name not in value:
            there = ", ".join(map(str, value)) if isinstance(value, Mapping) else f"a {type(value).__name__}"
            raise ForeignBoardsError(
                f"{where}: no `{name}` (for {field} = {path}); there is {there:.200}. Say with `{field}` where it is"
            )
        value = value[name]
        if key.endswith("[]"):
            value = _parsed(value) if isinstance(value, str) else value
            if isinstance(value, Mapping):
                value = [value[k] for k in sorted(value, key=lambda k: (len(k), k))]
            if not isinstance(value, list):
                raise ForeignBoardsError(f"{where}: `{name}` (for {field} = {path}) is not a list: {value!r:.60}")
            return [_follow(where, entry, field, path, keys[position + 1 :]) for entry in value]
    return _parsed(value) if isinstance(value, str) else value


def _parsed(text: str) -> Any:
    """The list or object that a text spells, else the text."""
    if text.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(text)
        except ValueError:
            pass
    return text


def _files(path: Path) -> list[Path]:
    if path.is_file():
        if path.suffix not in SUFFIXES:
            raise ForeignBoardsError(f"{path}: files ending in {', '.join(SUFFIXES)} are allowed, not {path.suffix!r}")
        return [path]
    if not path.is_dir():
        raise ForeignBoardsError(f"{path}: there is no such file or folder")
    for suffix in SUFFIXES:
        found = sorted(file for file in path.rglob(f"*{suffix}") if file.name not in NO_DATA)
        if found:
            return found
    raise ForeignBoardsError(f"{path}: the folder has no file ending in {', '.join(SUFFIXES)}")


def _rows(file: Path) -> Iterator[Row]:
    try:
        rows = _columnar(file) if file.suffix in (".parquet", ".arrow") else _json(file)
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, ForeignBoardsError):
            raise
        raise ForeignBoardsError(f"{file}: it cannot be read: {error}") from None
    for number, row in enumerate(rows, 1):
        where = f"{file}, row {number}"
        if not isinstance(row, dict):
            raise ForeignBoardsError(f"{where}: it is a {type(row).__name__}; a row must be an object")
        yield where, row


def _columnar(file: Path) -> list[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if file.suffix == ".parquet":
            table = pq.read_table(file)
        else:  # what `Dataset.save_to_disk` writes
            with pa.memory_map(str(file)) as source:
                table = pa.ipc.open_stream(source).read_all()
        rows: list[Any] = table.to_pylist()
    except pa.ArrowException as error:
        raise ForeignBoardsError(f"{file}: it cannot be read: {error}") from None
    return rows


def _json(file: Path) -> list[Any]:
    """The rows of one JSON value, or of a JSON value a line (which files called .json often are)."""
    text = file.read_text("utf-8-sig")
    try:
        value = json.loads(text)
    except ValueError:
        return _lines(file, text)
    if isinstance(value, dict):
        only = next(iter(value.values()), None) if len(value) == 1 else None
        value = only if isinstance(only, list) else [value]  # {"data": [...]}, or a single board
    if not isinstance(value, list):
        raise ForeignBoardsError(f"{file}: it is a JSON {type(value).__name__}; a list of objects is allowed")
    return value


def _lines(file: Path, text: str) -> list[Any]:
    rows = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                rows.append(json.loads(line))
            except ValueError as error:
                raise ForeignBoardsError(f"{file}, line {number}: it is not JSON: {error}") from None
    return rows
