"""Studies and benchmarks: `python -m experiments.<name> --config ...` from the root.

Not part of the wheel, and nothing imports it.
"""
