"""The one door to numba: typed decorators, and a compile cache keyed by content instead of by path and time.

numba keys its cache by source path and modification time, so a Ray working directory unpacked elsewhere would compile
again for a minute. Here the folder's name is a digest of all kernel sources, of numba, Python and the CPU.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import os
import platform
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

numba: Any = importlib.import_module("numba")
_caching: Any = importlib.import_module("numba.core.caching")
_extending: Any = importlib.import_module("numba.extending")
_ir: Any = importlib.import_module("llvmlite.ir")
_llvm: Any = importlib.import_module("llvmlite.binding")

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function) -> Function:
    """Compile as part of an entry kernel, once.

    numba would compile a function again for every constant and for every width of integer among its arguments, which
    made 250 functions out of 90.
    """
    return _compile_once(function)


def inlined_kernel(function: Function) -> Function:
    """A kernel that becomes part of each of its callers: in the innermost loops a call costs more than its work."""
    return _compile_once(function, forceinline=True)


def _compile_once(function: Function, **options: bool) -> Function:
    dispatcher = numba.njit(nogil=True, **options)(function)
    plain = dispatcher.get_call_template

    def get_call_template(args: Any, kws: Any) -> Any:
        return plain([_plain_type(arg) for arg in args], {name: _plain_type(arg) for name, arg in kws.items()})

    dispatcher.get_call_template = get_call_template
    return cast(Function, dispatcher)


def _plain_type(kind: Any) -> Any:
    """The type without its constant value, integers of up to 32 bits as int64."""
    kind = numba.types.unliteral(kind)
    return numba.types.int64 if isinstance(kind, numba.types.Integer) and kind.bitwidth < 64 else kind


def entry_kernel(function: Function) -> Function:
    """Compile a kernel that Python calls; its machine code, with all it calls, is kept in the content-keyed cache."""
    dispatcher = numba.njit(nogil=True)(function)
    dispatcher._cache = _KernelCache(dispatcher.py_func)
    return cast(Function, dispatcher)


@functools.cache
def cache_directory() -> Path:
    """`$XDG_CACHE_HOME/envwright/numba/<digest>`, or the same under the temporary folder where that is read-only."""
    digest = hashlib.blake2b(digest_size=16)
    here = Path(__file__)
    for source in (here, *sorted(here.parent.joinpath("kernels").glob("*.py"))):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    cpu = numba.config.CPU_NAME or _llvm.get_host_cpu_name()
    for part in (numba.__version__, platform.python_version(), cpu, str(numba.config.BOUNDSCHECK)):
        digest.update(f"{part}\0".encode())
    home = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    fallback = Path(tempfile.gettempdir()) / f"envwright-{os.getuid()}"
    for base in (home / "envwright", fallback):
        folder = base / "numba" / digest.hexdigest()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError:
            continue
    raise RuntimeError(f"no writable folder for compiled kernels: tried {home} and {fallback}; set XDG_CACHE_HOME")


class _ContentLocator:
    """What numba asks of a cache locator; the digest in the folder name stands in for path and time stamp."""

    def __init__(self, name: str) -> None:
        self._name = name

    @classmethod
    def from_function(cls, function: Callable[..., Any], source_file: str) -> _ContentLocator:
        return cls(Path(source_file).stem)

    def ensure_cache_path(self) -> None:
        cache_directory()

    def get_cache_path(self) -> str:
        return str(cache_directory())

    def get_source_stamp(self) -> str:
        return cache_directory().name

    def get_disambiguator(self) -> str:
        return self._name


_KernelCacheImpl: Any = type(
    "_KernelCacheImpl", (_caching.CompileResultCacheImpl,), {"_locator_classes": [_ContentLocator]}
)
_KernelCache: Any = type("_KernelCache", (_caching.FunctionCache,), {"_impl_class": _KernelCacheImpl})


def _as_int(value: Any) -> Any:
    return np.int64(value)


as_int: Callable[[Any], int] = numba.njit(nogil=True)(_as_int)
"""Any integer as int64: left alone, an unsigned one mixed with a signed one becomes a float in numba."""


def _trailing_zeros(typing_context: Any, word: Any) -> Any:
    """Index of the lowest set bit of a non-zero uint64, as int64: one machine instruction."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], _ir.Constant(_ir.IntType(1), 1))

    return numba.types.int64(numba.types.uint64), build


trailing_zeros: Callable[[Any], int] = _extending.intrinsic(_trailing_zeros)


def _cycles(typing_context: Any) -> Any:
    """Ticks of the processor's time stamp counter, as int64."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        counter = builder.module.declare_intrinsic("llvm.readcyclecounter", (), _ir.FunctionType(_ir.IntType(64), ()))
        return builder.call(counter, ())

    return numba.types.int64(), build


cycles: Callable[[], int] = _extending.intrinsic(_cycles)
