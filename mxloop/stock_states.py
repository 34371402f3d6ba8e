"""MXNet's pickled optimizer states (``.states``), read without running anything of the file.

A pickle is a program for a small machine that can call any function by its name. Here is such a
machine, for the opcodes that these files need. It never imports and never calls: a class is its
name, an object is a name with arguments and a state, and only a few names may be called at all.
"""

import io
import pickletools
import re
from typing import Any, Dict, List, NamedTuple

from mxloop import params_format
from mxloop.errors import DataError
from mxloop.params_format import ending
from mxloop.strict_json import Flaw
from mxloop.validation import shown

MOST_OPCODES = 500_000  # of one to a few bytes each; each can take 200 bytes of memory
MOST_STATES = 100_000
MOST_DEPTH = 8
# Older Pythons take minutes over such a number.
LONG_NUMBER = re.compile(rb"[0-9]{4000}")

ARRAYS = {
    ("mxnet.ndarray.ndarray", "NDArray"),
    ("mxnet.ndarray", "NDArray"),
    ("mxnet.ndarray.sparse", "RowSparseNDArray"),
    ("mxnet.ndarray.sparse", "CSRNDArray"),
    ("mxnet.numpy.multiarray", "ndarray"),
}
BYTES = {
    (module, name) for module in ("builtins", "__builtin__") for name in ("bytearray", "bytes")
}
ENCODE = {("_codecs", "encode")}
DICTS = {("collections", "OrderedDict"), ("collections", "defaultdict")}
# Called in a pickle of an optimizer; here they make an object that only remembers.
REMEMBERED = {(module, "_reconstructor") for module in ("copyreg", "copy_reg")} | {
    (f"numpy.{core}.multiarray", name)
    for core in ("core", "_core")
    for name in ("_reconstruct", "scalar")
}
REMEMBERED |= {("numpy", "dtype"), ("numpy", "ndarray"), *ARRAYS}

_MARK = object()


class StockStates(NamedTuple):
    """What a file of MXNet's optimizer states holds.

    ``counts`` and ``names`` are empty where the file holds no optimizer.
    """

    states: Dict[Any, Any]  # by the updater's key: an index, or a name
    counts: Dict[Any, int]  # how many times each was updated
    names: Dict[Any, str]  # parameter names by key


def is_pickle(data: Any) -> bool:
    """Whether data look like a pickle of states, of any protocol."""
    start, end = bytes(data[:1]), bytes(data[-1:])
    return start == b"\x80" or (start in (b"(", b"}", b"c") and end == b".")


def convert_stock_states(data: Any, where: str = "the file") -> Dict[Any, Any]:
    """Read the states that ``Updater.get_states`` or ``Module.save_optimizer_states`` wrote.

    Parameters
    ----------
    data : bytes-like
    where : str
        What a message calls the data.

    Returns
    -------
    dict
        By the updater's key, an index or a name: None, an NDArray, or a tuple or list of those.

    Raises
    ------
    DataError
        If the data are no such file; also if they would call something that no such file calls.
    """
    return read_stock_states(data, where).states


def read_stock_states(data: Any, where: str = "the file") -> StockStates:
    """Read the states, and what the optimizer in the file, if there is one, counted and named.

    Raises
    ------
    DataError
    """
    try:
        return _stock_states(_unpickled(bytes(data)))
    except Flaw as flaw:
        raise DataError(
            f"{ending(where)} holds no optimizer states of MXNet: {shown(flaw, 110)}; "
            "take another copy, or start without states"
        ) from flaw.__cause__


# What the pickle holds


class _Name:
    """A class or function, which is never looked up."""

    def __init__(self, module: str, name: str) -> None:
        self.path = (module, name)

    def __repr__(self) -> str:
        return ".".join(self.path)


class _Object:
    """An object that was not made."""

    def __init__(self, made_by: _Name, arguments: Any) -> None:
        self.made_by = made_by
        self.arguments = arguments
        self.state: Any = None


def _stock_states(held):
    optimizer = None
    if isinstance(held, tuple) and len(held) == 2:
        held, optimizer = held
    if not isinstance(held, dict) or not (optimizer is None or isinstance(optimizer, _Object)):
        raise Flaw("it is no dict of states, with or without an optimizer")
    told = optimizer.state if optimizer is not None and isinstance(optimizer.state, dict) else {}
    return StockStates(_Converter().states(held), _counts(told), _names(told))


def _counts(told):
    counts: Dict[Any, int] = {}
    every = told.get("_all_index_update_counts")
    of_devices = list(every.values()) if isinstance(every, dict) else []
    for of_device in [*of_devices, told.get("_index_update_count")]:
        if isinstance(of_device, dict):
            counts.update({k: n for k, n in of_device.items() if type(n) is int and n >= 0})
    return counts


def _names(told):
    names = told.get("idx2name")
    return {k: n for k, n in names.items() if isinstance(n, str)} if isinstance(names, dict) else {}


class _Converter:
    """States out of what the pickle holds; an array that serves twice is made once."""

    def __init__(self) -> None:
        self.made: Dict[int, Any] = {}
        self.count = 0

    def states(self, held: Dict[Any, Any]) -> Dict[Any, Any]:
        """Every state of a dict."""
        for key in held:
            if type(key) not in (int, str):
                raise Flaw(f"it names a state {key!r}; names are text or whole numbers")
        return {key: self.state(value, 0) for key, value in held.items()}

    def state(self, value: Any, depth: int) -> Any:
        """One state; sharing could make a small file into a large tree."""
        self.count += 1
        if depth > MOST_DEPTH or self.count > MOST_STATES:
            raise Flaw("its states are too many or too deeply nested")
        if value is None:
            return None
        if type(value) in (tuple, list):
            return type(value)([self.state(part, depth + 1) for part in value])
        if isinstance(value, _Object) and value.made_by.path in ARRAYS:
            return self.array(value)
        what = value.made_by if isinstance(value, _Object) else type(value).__name__
        raise Flaw(f"a state is {what}, not an NDArray, None, or a tuple of those")

    def array(self, value: _Object) -> Any:
        """An array out of MXNet's bytes of it."""
        if id(value) not in self.made:
            handle = value.state.get("handle") if isinstance(value.state, dict) else None
            if not isinstance(handle, bytes):
                raise Flaw("an array in it has no content")
            self.made[id(value)] = params_format.decode_one(handle, "an array in it")
        return self.made[id(value)]


# The machine


def _unpickled(data):
    if LONG_NUMBER.search(data):
        raise Flaw("it holds a number of thousands of digits")
    machine = _Machine(len(data))
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(io.BytesIO(data))):
            if count > MOST_OPCODES:
                raise Flaw(f"it has more than {MOST_OPCODES} steps")
            machine.step(opcode.name, argument)
    except (ValueError, IndexError, KeyError, TypeError, AttributeError) as error:
        # Each is what a step makes of a stack or memo that does not hold what the step needs.
        raise Flaw(f"it is no whole pickle ({shown(error, 60)})") from error
    if not machine.stopped or len(machine.stack) != 1:
        raise Flaw("it is no whole pickle")
    return machine.stack[0]


class _Machine:
    """A stack and a memo; one method for each kind of step."""

    def __init__(self, size: int) -> None:
        self.stack: List[Any] = []
        self.memo: Dict[int, Any] = {}
        self.to_encode = size  # bytes that text may still become: no file needs more than its own
        self.stopped = False

    def step(self, name: str, argument: Any) -> None:
        """One opcode."""
        if name in _PUSHED:
            self.stack.append(argument)
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name]())
        elif name in _STEPS:
            _STEPS[name](self, argument)
        else:
            raise Flaw(f"it uses {name}, which no file of states does")

    def pop(self, count: int) -> List[Any]:
        """The last few values, in order."""
        taken = self.stack[-count:]
        if len(taken) < count or any(value is _MARK for value in taken):
            raise Flaw("it is no whole pickle (too little on the stack)")
        del self.stack[-count:]
        return taken

    def pop_mark(self) -> List[Any]:
        """The values since the last mark."""
        place = len(self.stack) - 1
        while self.stack[place] is not _MARK:  # an IndexError where there is none
            place -= 1
        taken = self.stack[place + 1 :]
        del self.stack[place:]
        return taken

    def remember(self, place: int) -> None:
        """Keep the last value for later."""
        self.memo[place] = self.stack[-1]

    def set_items(self, pairs: List[Any]) -> None:
        """Key after value into the dict that is now last."""
        holder = self.stack[-1]
        for key, value in zip(pairs[::2], pairs[1::2]):
            if type(key) not in (int, str, bool, float, type(None)):
                raise Flaw("it has a key that is neither text nor a number")
            if not isinstance(holder, dict):
                raise Flaw("it sets an item of what is no dict")
            holder[key] = value

    def make_dict(self) -> None:
        """A dict of the values since the last mark."""
        pairs = self.pop_mark()
        self.stack.append({})
        self.set_items(pairs)

    def extend(self, values: List[Any]) -> None:
        """Values onto the list that is now last."""
        if not isinstance(self.stack[-1], list):
            raise Flaw("it appends to what is no list")
        self.stack[-1].extend(values)

    def name(self, module: Any, name: Any) -> None:
        """A class or function, as its name."""
        if not isinstance(module, str) or not isinstance(name, str):
            raise Flaw("it names a class by what is no text")
        self.stack.append(_Name(module, name))

    def call(self) -> None:
        """Stand in for a call of a function."""
        function, arguments = self.pop(2)
        path = getattr(function, "path", None)
        if not isinstance(arguments, tuple) or path is None:
            raise Flaw("it calls what is no function")
        if path in BYTES:
            self.stack.append(self.bytes_of(*arguments))
        elif path in ENCODE:
            self.stack.append(self.encoded(*arguments))
        elif path in DICTS:
            self.stack.append({})
        elif path in REMEMBERED:
            self.stack.append(_Object(_class_of(function, arguments), arguments))
        else:
            raise Flaw(f"it would call {shown(function, 60)}, which no such file does")

    def bytes_of(self, value: Any = b"", coding: str = "latin1") -> bytes:
        """What ``bytes(value, coding)`` is, if that is bytes already or text."""
        if isinstance(value, (bytes, bytearray)):
            return value
        return self.encoded(value, coding)

    def encoded(self, text: str, coding: str = "latin1") -> bytes:
        """Bytes that older pickles hold as text."""
        if not isinstance(text, str) or coding not in ("latin1", "latin-1"):
            raise Flaw("it encodes what is no text in Latin-1")
        self.to_encode -= len(text)
        if self.to_encode < 0:
            raise Flaw("it repeats its content many times over")
        return text.encode("latin1")

    def new(self) -> None:
        """Stand in for the making of an object."""
        klass, arguments = self.pop(2)
        if not isinstance(klass, _Name):
            raise Flaw("it makes an object of what is no class")
        self.stack.append(_Object(klass, arguments))

    def build(self) -> None:
        """Give an object its state."""
        (state,) = self.pop(1)
        if not isinstance(self.stack[-1], _Object):
            raise Flaw("it gives a state to what is no object")
        self.stack[-1].state = state

    def stop(self) -> None:
        """The end."""
        self.stopped = True


def _class_of(function, arguments):
    """The class of an object made through copyreg, which is the first argument."""
    made = arguments[0] if function.path[1] == "_reconstructor" and arguments else function
    if not isinstance(made, _Name):
        raise Flaw("it makes an object of what is no class")
    return made


_PUSHED = {"INT", "LONG", "LONG1", "LONG4", "BININT", "BININT1", "BININT2", "FLOAT", "BINFLOAT"}
_PUSHED |= {"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
_PUSHED |= {"STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"}
_CONSTANTS = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_TUPLE": tuple,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "MARK": lambda: _MARK,
}
_STEPS = {
    "PROTO": lambda machine, _: None,
    "FRAME": lambda machine, _: None,
    "BYTEARRAY8": lambda machine, argument: machine.stack.append(bytes(argument)),
    "TUPLE": lambda machine, _: machine.stack.append(tuple(machine.pop_mark())),
    "TUPLE1": lambda machine, _: machine.stack.append(tuple(machine.pop(1))),
    "TUPLE2": lambda machine, _: machine.stack.append(tuple(machine.pop(2))),
    "TUPLE3": lambda machine, _: machine.stack.append(tuple(machine.pop(3))),
    "LIST": lambda machine, _: machine.stack.append(machine.pop_mark()),
    "DICT": lambda machine, _: machine.make_dict(),
    "APPEND": lambda machine, _: machine.extend(machine.pop(1)),
    "APPENDS": lambda machine, _: machine.extend(machine.pop_mark()),
    "SETITEM": lambda machine, _: machine.set_items(machine.pop(2)),
    "SETITEMS": lambda machine, _: machine.set_items(machine.pop_mark()),
    "PUT": lambda machine, place: machine.remember(place),
    "BINPUT": lambda machine, place: machine.remember(place),
    "LONG_BINPUT": lambda machine, place: machine.remember(place),
    "MEMOIZE": lambda machine, _: machine.remember(len(machine.memo)),
    "GET": lambda machine, place: machine.stack.append(machine.memo[place]),
    "BINGET": lambda machine, place: machine.stack.append(machine.memo[place]),
    "LONG_BINGET": lambda machine, place: machine.stack.append(machine.memo[place]),
    "GLOBAL": lambda machine, names: machine.name(*names.split(" ", 1)),
    "STACK_GLOBAL": lambda machine, _: machine.name(*machine.pop(2)),
    "REDUCE": lambda machine, _: machine.call(),
    "NEWOBJ": lambda machine, _: machine.new(),
    "BUILD": lambda machine, _: machine.build(),
    "STOP": lambda machine, _: machine.stop(),
}
