"""The one family of errors that users of rpopt meet.

Each message says what is wrong, with which numbers, and what to do next. `assert`
is kept for our own invariants.
"""


class RpoptError(Exception):
    """Base of every error rpopt raises on purpose."""


class InstanceError(RpoptError, ValueError):
    """Input data that no problem can be built from."""


class InfeasibleError(RpoptError, ValueError):
    """A well-formed problem without a solution; the message holds the proof."""


class FileFormatError(RpoptError, ValueError):
    """A file that is truncated, tampered with, or of an unknown schema."""


class MismatchError(RpoptError, ValueError):
    """Two things that do not belong together, such as a plan and another window."""


class SolverError(RpoptError, RuntimeError):
    """A solver that failed, or answered with a status that cannot be read."""


class CertificateError(RpoptError, ValueError):
    """A certificate whose witness or bound does not hold."""


class CommunicationError(RpoptError, RuntimeError):
    """A process of the group that was lost, or did not answer in time."""


class CheckpointError(RpoptError, RuntimeError):
    """A checkpoint that could not be written, is incomplete, or is damaged."""
