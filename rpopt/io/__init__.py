"""Files: windows, instances, plans and certificates; readers and generators.

Readers of rollout dumps, generators and the reference windows are modules of their own:
`routes`, `route_files`, `synthetic`, `reference`.
"""

from rpopt.io.files import read, read_json, read_npz, write_json, write_npz
from rpopt.io.schedule import read_schedule

__all__ = [
    "read",
    "read_json",
    "read_npz",
    "read_schedule",
    "write_json",
    "write_npz",
]
