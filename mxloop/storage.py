"""Files that appear whole or not at all, and stay after a power cut.

Bytes go to a temporary file beside the final one, are forced to the disk, and take the final name
in one step; then the folder's entry is forced to the disk as well.
"""

import contextlib
import hashlib
import os
from typing import Any, Dict, Iterable, Iterator, List

from mxloop.errors import DataError
from mxloop.validation import shown

PARTIAL = ".partial"
SMALL = 1 << 16  # bytes; smaller pieces are written together


def pieces(data: Any) -> List[Any]:
    """A file's content as a list of buffers, of which a large one need not be copied."""
    return data if isinstance(data, list) else [data]


def size(data: Any) -> int:
    """The bytes of a file's content."""
    return sum(len(piece) for piece in pieces(data))


def sha256(data: Any) -> str:
    """The checksum of a file's content."""
    checksum = hashlib.sha256()
    for piece in pieces(data):
        checksum.update(piece)
    return checksum.hexdigest()


def _joined(data: Any) -> Iterator[Any]:
    small: List[Any] = []
    for piece in pieces(data):
        if len(piece) >= SMALL:
            yield b"".join(small)
            yield piece
            small = []
        else:
            small.append(piece)
    yield b"".join(small)


def write_partial(path: str, data: Any) -> str:
    """Write bytes, or a list of buffers, to the temporary file of `path`; return that one's path.

    They are safely on the disk then.

    Raises
    ------
    DataError
        If that fails; nothing is left behind then.
    """
    partial = path + PARTIAL
    with _explained(f"write {shown(path)}"):
        try:
            _write_synced(partial, data)
        except BaseException:
            remove([partial])
            raise
    return partial


def _write_synced(path, data):
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        for piece in _joined(data):
            view = memoryview(piece)
            while view:
                view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def put_in_place(paths: Iterable[str]) -> None:
    """Give written temporary files their final names, and force those to the disk."""
    paths = list(paths)
    for path in paths:
        with _explained(f"put {shown(path)} in place"):
            os.replace(path + PARTIAL, path)
    for folder in {os.path.dirname(path) or "." for path in paths}:
        with _explained(f"write the folder {shown(folder)}"):
            _sync_folder(folder)


def _sync_folder(folder):
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(files: Dict[str, bytes]) -> None:
    """Write several files, each whole; all are on the disk before the first takes its name."""
    written = []
    try:
        for path, data in files.items():
            written.append(write_partial(path, data))
        put_in_place(files)
    except BaseException:
        remove(written)
        raise


def remove(paths: Iterable[str]) -> None:
    """Remove files, those that are there."""
    for path in paths:
        with contextlib.suppress(OSError):
            os.remove(path)


def read(path: str, most: int = -1) -> bytes:
    """Read a whole file, or only its first byte more than `most`.

    Raises
    ------
    DataError
        If it cannot be read.
    """
    with _explained(f"read {shown(path)}"), open(path, "rb") as stream:
        return stream.read() if most < 0 else stream.read(most + 1)


@contextlib.contextmanager
def _explained(doing):
    try:
        yield
    except MemoryError as error:
        raise DataError(f"cannot {doing}: it needs more memory than there is") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the path
        told = getattr(error, "strerror", None) or error
        raise DataError(f"cannot {doing}: {shown(told)}") from error
