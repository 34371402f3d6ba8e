"""What all peers are given to do."""

import dataclasses
import json
from typing import Any, Dict, List, Optional, Sequence, Tuple

import nets
import numpy as np

LEARNING_RATE = 0.02
MOMENTUM = 0.9
DECAY = 1e-4


@dataclasses.dataclass(frozen=True)
class Work:
    """A training run.

    Attributes
    ----------
    net : str
        A name in `nets.NETS`.
    samples, batch, epochs : int
    source : str
        Where batches come from: 'arrays', in the peer's own natural way; 'iterator', a stock
        `mx.io.NDArrayIter`; 'memory', rows gathered from memory by a loop that knows how.
    shuffle : bool
    contexts : int
        CPU devices that share a batch.
    threads : int or None
        Threads an operator; None as the peer chooses.
    callbacks : bool
        Whether the loops that take callbacks have a Speedometer.
    guard : bool
        Whether mxloop looks for NaN in each step.
    amp : str or None
        What mxloop's matrix products compute in, where it is not float32.
    parts : list of str
        What the bare limit does besides; see `peers/parts.py`.
    metric : str or None
    kvstore : str
    """

    net: str = "mlp"
    samples: int = 12_800
    batch: int = 128
    epochs: int = 2
    source: str = "arrays"
    shuffle: bool = True
    contexts: int = 1
    threads: Optional[int] = None
    callbacks: bool = True
    guard: bool = True
    amp: Optional[str] = None
    parts: Sequence[str] = ()
    metric: Optional[str] = "acc"
    kvstore: str = "local"

    def __post_init__(self) -> None:
        if self.samples < self.batch:
            raise ValueError(f"{self.samples} samples make no batch of {self.batch}")
        # All loops then have the same batches, whatever they do with a short last one.
        object.__setattr__(self, "samples", self.samples // self.batch * self.batch)

    def to_json(self) -> str:
        return json.dumps(self.as_dict())

    @staticmethod
    def from_json(text: str) -> "Work":
        return Work(**json.loads(text))

    def as_dict(self) -> Dict[str, Any]:
        return dataclasses.asdict(self)

    def but(self, **changes: Any) -> "Work":
        """The same work, with these changes."""
        return dataclasses.replace(self, **changes)

    @property
    def network(self) -> nets.Net:
        return nets.NETS[self.net]()

    @property
    def steps(self) -> int:
        """Steps in an epoch."""
        return self.samples // self.batch

    def arrays(self) -> Tuple[np.ndarray, np.ndarray]:
        """Samples around a centre for each class, and the classes, as float32."""
        net = self.network
        random = np.random.default_rng(0)
        classes = min(net.classes, 10)
        centres = random.standard_normal((classes, *net.shape), "float32")
        y = random.integers(0, classes, self.samples)
        x = random.standard_normal((self.samples, *net.shape), "float32")
        for row, label in zip(x, y):  # a whole array of centres would show as the peak of memory
            row += centres[label]
        return x, y.astype("float32")

    def initial(self) -> List[np.ndarray]:
        """The parameters to begin with."""
        return nets.initial(self.network)

    def order(self, epoch: int) -> np.ndarray:
        """Row numbers in an epoch's order, for loops that gather rows themselves."""
        rows = np.arange(self.samples)
        return np.random.RandomState(epoch).permutation(rows) if self.shuffle else rows
