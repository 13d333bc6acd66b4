"""PackingSolver on bin packing: runs alone, under an interpreter that has it.

    PACKINGSOLVER_PYTHON=... python -m experiments.certify_rows ...

Reads {"weights", "capacity", "limit_s"} as JSON and answers {"lower", "upper"}. Imports
nothing of this project, whose Python may be older than PackingSolver needs.
"""

import json
import sys
from collections import Counter

import packingsolver.onedimensional as ps


def main() -> None:
    task = json.load(sys.stdin)
    builder = ps.InstanceBuilder()
    builder.set_objective(ps.Objective.BinPacking)
    builder.add_bin_type(task["capacity"], copies=len(task["weights"]))
    for weight, copies in Counter(task["weights"]).items():
        builder.add_item_type(weight, copies=copies)
    parameters = ps.OptimizeParameters()
    parameters.time_limit = task["limit_s"]
    parameters.verbosity_level = 0
    output = ps.optimize(builder.build(), parameters)
    upper = output.solution.number_of_bins()
    json.dump({"lower": int(output.bin_packing_bound), "upper": upper}, sys.stdout)


if __name__ == "__main__":
    main()
