"""`rpopt verify`: recheck a plan against its window, without a solver or torch."""

import argparse
import sys
from pathlib import Path
from typing import Any

from rpopt.cli import output
from rpopt.cli.plan import summary
from rpopt.errors import CertificateError
from rpopt.io import read
from rpopt.plans import Plan
from rpopt.verifier import verify_plan
from rpopt.window import Window


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("verify", help="recheck a plan without a solver")
    parser.add_argument("window", type=Path, metavar="WINDOW")
    parser.add_argument("file", type=Path, metavar="FILE", help="plan of the window")
    parser.add_argument("--json", action="store_true", help="answer in JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Verify and print what holds; exit code 1 when something does not."""
    window = read(args.window, Window)
    plan = read(args.file, Plan)
    try:
        verify_plan(window, plan)
    except CertificateError as error:
        print(f"rpopt: not verified: {error}", file=sys.stderr)
        return 1
    answer = {"file": args.file.name, "verified": True, **summary(window, plan)}
    output.print_rows([answer], as_json=args.json)
    return 0
