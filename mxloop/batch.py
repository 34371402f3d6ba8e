"""What a batch is: named arrays, an axis that counts the samples, rows that only pad."""

import numbers
from typing import Any, Dict, List, Optional, Sequence, Tuple

from mxloop.compat import mx
from mxloop.errors import DataError
from mxloop.validation import names, shown


def sample_shapes(data: Any) -> Dict[str, Tuple[int, ...]]:
    """Each input's shape of one sample, of data whose first axis counts samples."""
    return {desc.name: tuple(desc.shape[1:]) for desc in as_descs(data.provide_data)}


def as_descs(provided: Any) -> List[mx.io.DataDesc]:
    """Descriptions of inputs as an iterator gives them (DataDesc or tuples) -> list of DataDesc."""
    if provided is not None and (
        isinstance(provided, (str, bytes)) or not hasattr(provided, "__iter__")
    ):
        raise DataError(
            f"provide_data or provide_label is {shown(repr(provided))}; make it a list of "
            "mx.io.DataDesc(name, shape)"
        )
    return [_as_desc(desc) for desc in provided if desc is not None] if provided else []


def _as_desc(desc):
    """One description; its name and shape are looked at before MXNet's C++ sees them."""
    parts = tuple(desc) if isinstance(desc, (list, tuple)) else ()
    named = len(parts) >= 2 and isinstance(parts[0], str) and isinstance(parts[1], (list, tuple))
    if not named or not all(isinstance(size, numbers.Integral) for size in parts[1]):
        raise DataError(
            f"provide_data or provide_label holds {shown(repr(desc))}; each entry needs a name and "
            "a shape, as mx.io.DataDesc('data', (32, 10))"
        )
    return desc if isinstance(desc, mx.io.DataDesc) else mx.io.DataDesc(*parts)


def batch_axis(desc: mx.io.DataDesc) -> int:
    """The axis of an input that counts the samples."""
    return max(mx.io.DataDesc.get_batch_axis(desc.layout), 0)


def describe(
    own: Any,
    promised: Sequence[mx.io.DataDesc],
    arrays: Optional[Sequence[mx.nd.NDArray]],
    what: str,
) -> List[mx.io.DataDesc]:
    """Describe a batch's arrays with the shapes that they really have.

    Parameters
    ----------
    own : list of DataDesc, optional
        The batch's own description, where it has one.
    promised : list of DataDesc
        The iterator's.
    arrays : list of NDArray or None
    what : str
        'inputs' or 'labels'.

    Raises
    ------
    DataError
        If arrays are missing or are none, or lack the names that the iterator promised.
    """
    descs = as_descs(own) or list(promised)
    if isinstance(arrays, mx.nd.NDArray):
        raise DataError(f"a batch brings one array as its {what}; put it in a list: [array]")
    arrays = arrays or []
    lacking = {desc.name for desc in promised} - {desc.name for desc in descs}
    if len(arrays) != len(descs) or lacking:
        raise DataError(
            f"a batch brings {len(arrays)} {what} ({names([desc.name for desc in descs])}), and "
            f"the iterator promised {names([desc.name for desc in promised])}; correct the iterator"
        )
    for desc, array in zip(descs, arrays):
        if not isinstance(array, mx.nd.NDArray):
            raise DataError(
                f"a batch brings {shown(type(array).__name__)} for {desc.name!r}; make it an "
                "NDArray, as mx.nd.array(x)"
            )
    return [
        mx.io.DataDesc(desc.name, array.shape, desc.dtype, desc.layout)
        for desc, array in zip(descs, arrays)
    ]


def num_rows(descs: Sequence[mx.io.DataDesc]) -> int:
    """Number of rows of a batch, which all its arrays must have."""
    for desc in descs:
        if len(desc.shape) <= batch_axis(desc):
            raise DataError(
                f"{desc.name!r} has shape {tuple(desc.shape)}; its axis {batch_axis(desc)} must "
                "count the samples"
            )
    counts = {desc.name: desc.shape[batch_axis(desc)] for desc in descs}
    first = next(iter(counts))
    for name, rows in counts.items():
        if rows != counts[first]:
            raise DataError(
                f"{first!r} has {counts[first]} rows in a batch, and {name!r} has {rows}; each "
                "needs one a sample: correct the iterator, or the layout of its DataDesc"
            )
    return counts[first]


def real_rows(batch: mx.io.DataBatch, descs: Sequence[mx.io.DataDesc]) -> int:
    """Number of samples in a batch, rows that only pad it left out."""
    rows = batch.data[0].shape[batch_axis(descs[0])]
    pad = batch.pad or 0
    if not isinstance(pad, numbers.Integral) or not 0 <= pad < rows:
        raise DataError(
            f"a batch of {rows} rows says pad={shown(repr(pad))}; it must have at least one row "
            "that is no padding: correct the iterator"
        )
    return rows - int(pad)


def resized(desc: mx.io.DataDesc, rows: int) -> mx.io.DataDesc:
    """The description of an input with another number of rows."""
    axis, shape = batch_axis(desc), desc.shape
    return mx.io.DataDesc(
        desc.name, (*shape[:axis], rows, *shape[axis + 1 :]), desc.dtype, desc.layout
    )


def rows_of(array: mx.nd.NDArray, part: slice, axis: int) -> mx.nd.NDArray:
    """Some rows of an array; the array itself where those are all."""
    if part == slice(0, array.shape[axis]):
        return array
    return array[part] if axis == 0 else array.slice_axis(axis, part.start, part.stop)


def dense(array: mx.nd.NDArray) -> mx.nd.NDArray:
    """A sparse array as an ordinary one; others as they are."""
    return array if array.stype == "default" else array.tostype("default")


def join(arrays: Sequence[mx.nd.NDArray], axis: int, ctx: mx.Context) -> mx.nd.NDArray:
    """Arrays of several devices, one behind the other, as one new array on `ctx`."""
    if len(arrays) == 1:
        return arrays[0].copyto(ctx)
    return mx.nd.concat(*[array.as_in_context(ctx) for array in arrays], dim=axis)


def sum_arrays(arrays: Sequence[mx.nd.NDArray], out: mx.nd.NDArray) -> None:
    """Sum arrays of several devices, always in one order, into `out`, which may be the first."""
    ctx = out.context
    # add_n reads other CPU contexts directly, but not other cards.
    here = arrays if ctx.device_type == "cpu" else [array.as_in_context(ctx) for array in arrays]
    if out.stype == "default":
        mx.nd.add_n(*here, out=out)
    else:
        # Written in place, a sparse sum loses rows.
        mx.nd.add_n(*here).copyto(out)
