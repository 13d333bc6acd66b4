"""`rpopt verify`: recheck plans and certificates, without a solver or torch."""

import argparse
import sys
from pathlib import Path
from typing import Any

from rpopt.certificate import Certificate
from rpopt.cli import output
from rpopt.cli.plan import summary
from rpopt.errors import CertificateError, InstanceError
from rpopt.io import read
from rpopt.plans import Plan
from rpopt.records import Record
from rpopt.verifier import verify_certificate, verify_plan
from rpopt.window import Window


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "verify", help="recheck a plan or a certificate without a solver"
    )
    parser.add_argument(
        "input", type=Path, metavar="INPUT", help="the window, or the instance"
    )
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="plan of the window, or certificate"
    )
    parser.add_argument("--json", action="store_true", help="answer in JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Verify and print what holds; exit code 1 when something does not."""
    about, found = read(args.input, Record), read(args.file, Record)
    try:
        answer = _verify(about, found)
    except CertificateError as error:
        print(f"rpopt: not verified: {error}", file=sys.stderr)
        return 1
    output.print_rows(
        [{"file": args.file.name, "verified": True, **answer}], as_json=args.json
    )
    return 0


def _verify(about: Record, found: Record) -> dict[str, Any]:
    if isinstance(about, Window) and isinstance(found, Plan):
        verify_plan(about, found)
        return summary(about, found)
    if isinstance(found, Certificate) and not isinstance(about, Window):
        proven = verify_certificate(about, found)
        return {
            "problem": found.problem,
            "upper": found.upper,
            "lower_arithmetic": proven,
            "lower_claimed": found.lower,
            "closed": found.closed,
            "closed_by_arithmetic": proven == found.upper,
        }
    raise InstanceError(
        f"a {type(found).__name__} cannot be checked against a {type(about).__name__};"
        " give a window and its plan, or an instance and its certificate"
    )
