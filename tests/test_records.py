"""records.py counts what MXNet's own reader reads."""

import struct

import numpy as np
import pytest

from mxloop import mx
from mxloop.records import count_records

MAGIC = struct.pack("<I", 0xCED7230A)


@pytest.fixture
def record(tmp_path):
    """A file of records of all lengths, some in parts, since the magic stands within them."""
    path = str(tmp_path / "some.rec")
    writer = mx.recordio.MXRecordIO(path, "w")
    random = np.random.RandomState(0)
    for length in range(40):
        body = random.bytes(length)
        writer.write(body if length % 3 else body[: length // 8 * 4] + MAGIC + body + MAGIC)
    writer.close()
    return path


def read(path):
    reader = mx.recordio.MXRecordIO(path, "r")
    return sum(1 for _ in iter(reader.read, None))


def test_every_record_counts_once_whether_whole_or_in_parts(record):
    assert count_records(record) == read(record) == 40


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 100])
def test_the_parts_of_several_workers_make_up_the_whole(record, parts):
    assert sum(count_records(record, part, parts) for part in range(parts)) == 40


def test_an_empty_file_has_none(tmp_path):
    (tmp_path / "empty.rec").write_bytes(b"")
    assert count_records(str(tmp_path / "empty.rec")) == 0
