"""How many records a RecordIO file has, read off their headers alone."""

import os
import struct
from typing import Iterator

HEADER = struct.Struct("<II")
SIZE_BITS = 29
WHOLE, FIRST = 0, 1  # a record is whole, or in parts of which this is the first


def count_records(path: str, part_index: int = 0, num_parts: int = 1) -> int:
    """Count the records of a file, or of the part of it that one of several workers reads.

    Parameters
    ----------
    path : str
        A ``.rec`` file that is intact.
    part_index, num_parts : int
        As `mx.io.ImageRecordIter` cuts a file: by bytes, at the next record.
    """
    size = os.path.getsize(path)
    step = -(-size // num_parts)
    step = -(-step // 4) * 4  # records begin at multiples of 4
    begin, end = step * part_index, step * (part_index + 1)
    return sum(begin <= start < end for start in _starts(path, size))


def _starts(path: str, size: int) -> Iterator[int]:
    with open(path, "rb") as stream:
        place = 0
        while place + HEADER.size <= size:
            stream.seek(place)
            kind, length = divmod(HEADER.unpack(stream.read(HEADER.size))[1], 1 << SIZE_BITS)
            if kind in (WHOLE, FIRST):
                yield place
            place += HEADER.size + -(-length // 4) * 4
