"""Every error that mxloop raises on purpose."""


class MXLoopError(Exception):
    """The parent of every error that mxloop raises on purpose."""


class InstallError(MXLoopError, ImportError):
    """The environment cannot run mxloop; the text names the remedy."""


class ArgumentError(MXLoopError, ValueError):
    """An argument has a value that cannot work."""


class ArgumentTypeError(MXLoopError, TypeError):
    """An argument is of a kind that cannot work."""


class DataError(MXLoopError, ValueError):
    """Data, labels or a file are not what the network or the format needs."""


class DivergedError(DataError):
    """Training made parameters NaN or infinite; those of the epoch before are kept."""


class StateError(MXLoopError, RuntimeError):
    """Something was called too early, too late, or while another process did not answer."""


class EngineError(MXLoopError, RuntimeError):
    """A computation failed inside MXNet, as for want of memory; what it wrote is not to be read."""


class PeerError(StateError):
    """Another process of the same training has ended, or does not answer in time."""


class Terminated(KeyboardInterrupt):
    """SIGTERM ended the training; like Ctrl-C, no ``except Exception`` stops it."""
