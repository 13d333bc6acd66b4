"""The command line: answers on stdout, logs and progress on stderr.

Exit codes: 0 done, 1 negative answer, 2 usage error.
"""

import argparse
import logging
import os
import sys
from collections.abc import Sequence

from rpopt.cli import (
    calibrate,
    certify,
    compare,
    export,
    place,
    plan,
    show,
    verify,
    window,
)
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
        code = int(args.run(args))
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (RpoptError, OSError, MemoryError) as error:
        print(f"rpopt: error: {error}", file=sys.stderr)
        return 2
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rpopt", description="Plan Mixture-of-Experts RL training steps."
    )
    parser.add_argument("--quiet", action="store_true", help="no progress, no logs")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    modules = (window, plan, place, compare, certify, verify, show, export, calibrate)
    for module in modules:
        module.add_parser(commands)
    return parser
