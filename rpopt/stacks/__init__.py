"""Planning inside a training stack: one module per stack.

Every drop-in function has its stack's own signature and, keyword-only behind it, the
`StackSettings` that the stack does not know; bind them with `functools.partial`.
"""

from rpopt.stacks.settings import StackSettings

__all__ = ["StackSettings"]
