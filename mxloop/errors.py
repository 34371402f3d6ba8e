"""Every error that mxloop raises on purpose."""


class MXLoopError(Exception):
    """The parent of every error that mxloop raises on purpose."""


class InstallError(MXLoopError, ImportError):
    """The environment cannot run mxloop; the text names the remedy."""
