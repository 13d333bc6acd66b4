"""Readers of what training stacks and engines dump, one module per source.

Every reader yields `rpopt.io.routes.SampleRoutes`, one sample at a time, and leaves
counting and checking to one normaliser, `rpopt.io.routes.WindowBuilder`. `read_window`
puts the two together. Nothing is unpickled unless the caller trusts the file.
"""

from rpopt.io.readers.window import SOURCES, read_window

__all__ = ["SOURCES", "read_window"]
