"""Finished items on disk, so that no board of a stream is drawn, solved or spelled out twice.

An item is a pure function of its stream and its index. The stream's address hashes all that decides it: the source
text of generator and solvers, knobs, agents, objective, seed, split, stage. Items lie under that address in Parquet
files, each a range of indices, immutable and moved into place whole, so any number of processes may share a folder.
"""

from __future__ import annotations

import hashlib
import logging
import os
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from environments.base import digest
from environments.mapf_frozenlake.generator import Items

VARIABLE = "ENVWRIGHT_LABELS"
"""Environment variable with the folder; without it nothing is kept."""
LIMIT_BYTES = 2 * 1024**3
"""When the files exceed this, the oldest go."""
FEWEST = 64
"""A request for fewer items is worked out: it is over before a file is open."""
CODE = ("board", "candidates", "straight", "generator", "yields", "labeller", "settings", "tickets")

log = logging.getLogger(__name__)


@cache
def code_digest() -> str:
    """Content hash of every source file that decides an item."""
    import solvers

    here, solver = Path(__file__).parent, Path(solvers.__file__).parent
    sources = [here / f"{name}.py" for name in CODE] + sorted(solver.rglob("*.py"))
    return hashlib.blake2b(b"".join(path.read_bytes() for path in sources), digest_size=16).hexdigest()


Stream = tuple[str | int, ...]
"""All that decides a stream besides the code."""


class ItemCache:
    """A folder of finished items. Best effort: what cannot be read or written is reported once and done without."""

    def __init__(self, folder: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        self.folder, self.limit_bytes = folder, limit_bytes
        self._reported: set[str] = set()

    @classmethod
    def from_environment(cls) -> ItemCache | None:
        """The cache that ``ENVWRIGHT_LABELS`` names, if it names one."""
        folder = os.environ.get(VARIABLE)
        return cls(Path(folder).expanduser()) if folder else None

    def read(self, stream: Stream, start: int, count: int) -> list[Items]:
        """Those of the items ``start`` .. ``start + count - 1`` that are there: ranges in order, none twice."""
        found: list[Items] = []
        end = start + count
        for path, first, last in self._parts(self._folder(stream)) if count >= FEWEST else ():
            begin, stop = max(first, start), min(last + 1, end)
            if begin < stop and (columns := self._columns(path, last - first + 1)):
                found.append(Items(begin, *(column[begin - first : stop - first].to_pylist() for column in columns)))
                start = stop
        return found

    def write(self, stream: Stream, items: Items) -> None:
        """Keep a range of items."""
        count = len(items.payloads)
        if count < FEWEST:
            return
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = self._folder(stream) / f"{items.first}-{items.first + count - 1}.parquet"
        scratch = path.with_name(f".{path.name}.{os.getpid()}")
        columns = {"stratum": items.strata, "payload": items.payloads, "drawn": items.drawn}
        table = pa.table(columns, schema=pa.schema(list(_schema().items())))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(table, scratch, compression="zstd", use_dictionary=["stratum"], write_page_checksum=True)
            os.replace(scratch, path)
            self._make_room(path)
        except OSError as error:
            self._report(str(self.folder), f"cannot keep labelled boards in {self.folder}: {error}")
        finally:
            with suppress(OSError):
                scratch.unlink(missing_ok=True)

    def _folder(self, stream: Stream) -> Path:
        return self.folder / digest([code_digest(), *stream])

    def _parts(self, folder: Path) -> list[tuple[Path, int, int]]:
        """(file, first index, last index) of a stream, in order."""
        names = ((path, path.stem.partition("-")) for path in folder.glob("*.parquet"))
        parts = [(path, int(a), int(b)) for path, (a, _, b) in names if a.isdecimal() and b.isdecimal()]
        return sorted(parts, key=lambda part: part[1:])

    def _columns(self, path: Path, rows: int) -> list[Any]:
        """The columns of a file in the order of ``Items``; none if it cannot be believed."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            table = pq.read_table(path, page_checksum_verification=True)
            if dict(zip(table.schema.names, table.schema.types)) != _schema() or table.num_rows != rows:
                raise ValueError(f"{table.num_rows} rows of {', '.join(table.column_names)}")
            return list(table.columns)
        except FileNotFoundError:
            pass  # another process made room
        except (OSError, ValueError, pa.ArrowException) as error:
            self._report(
                str(path),
                f"ignoring {path}, which is damaged ({error}): its boards are solved again",
            )
        return []

    def _make_room(self, newest: Path) -> None:
        """Delete the oldest files until the limit holds again; never the one just written."""
        files = []
        for path in self.folder.rglob("*.parquet"):
            with suppress(FileNotFoundError):  # another process makes room too
                stat = path.stat()
                files.append((path != newest, -stat.st_mtime, stat.st_size, path))
        total = sum(size for _, _, size, _ in files)
        for _, _, size, path in sorted(files, reverse=True):
            if total <= self.limit_bytes or path == newest:
                break
            path.unlink(missing_ok=True)
            total -= size

    def _report(self, what: str, message: str) -> None:
        if what not in self._reported:
            self._reported.add(what)
            log.warning(message)


def _schema() -> dict[str, Any]:
    import pyarrow as pa

    return {"stratum": pa.string(), "payload": pa.string(), "drawn": pa.int64()}
