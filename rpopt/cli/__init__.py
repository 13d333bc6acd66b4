"""The command line: answers on stdout, logs and progress on stderr.

Exit codes: 0 done, 1 negative answer, 2 usage error.
"""

import argparse
import logging
import sys
from collections.abc import Sequence

from rpopt.cli import certify, compare, plan, show, verify, window
from rpopt.errors import RpoptError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    args = _parser().parse_args(argv)
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.WARNING if args.quiet else logging.INFO,
        format="%(message)s",
    )
    try:
        return int(args.run(args))
    except (RpoptError, OSError, MemoryError) as error:
        print(f"rpopt: error: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rpopt", description="Plan Mixture-of-Experts RL training steps."
    )
    parser.add_argument("--quiet", action="store_true", help="no progress, no logs")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for module in (window, plan, compare, certify, verify, show):
        module.add_parser(commands)
    return parser
