"""Several processes: who they are, what they say to each other, and training with them."""

from mxloop.multi_node import functions
from mxloop.multi_node.batch_norm import MultiNodeBatchNorm, average_statistics
from mxloop.multi_node.chain_list import MultiNodeChainList
from mxloop.multi_node.checkpointer import MultiNodeCheckpoint, create_multi_node_checkpointer
from mxloop.multi_node.communicator import Communicator, create_communicator
from mxloop.multi_node.datasets import create_empty_dataset, scatter_dataset
from mxloop.multi_node.evaluator import create_multi_node_evaluator
from mxloop.multi_node.iterators import create_multi_node_iterator, create_synchronized_iterator
from mxloop.multi_node.kvstore import MPI
from mxloop.multi_node.optimizer import create_multi_node_optimizer
from mxloop.multi_node.pipeline import Pipeline, PipelineFeedForward, PipelineStage

__all__ = [
    "MPI",
    "Communicator",
    "MultiNodeBatchNorm",
    "MultiNodeChainList",
    "MultiNodeCheckpoint",
    "Pipeline",
    "PipelineFeedForward",
    "PipelineStage",
    "average_statistics",
    "create_communicator",
    "create_empty_dataset",
    "create_multi_node_checkpointer",
    "create_multi_node_evaluator",
    "create_multi_node_iterator",
    "create_multi_node_optimizer",
    "create_synchronized_iterator",
    "functions",
    "scatter_dataset",
]
