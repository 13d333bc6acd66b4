"""Certificates of placements, one per layer, made and checked in integers alone.

The witness names the layer (its position in the instance) and the slot of each of its
experts; the digest is that of the whole instance.
"""

from dataclasses import replace

import numpy as np

from rpopt.certificate import Certificate
from rpopt.checks import require_feasible
from rpopt.errors import CertificateError
from rpopt.placement import bounds
from rpopt.placement.instance import PlacementInstance, check, evaluate
from rpopt.plans import Placement


def certify_placement(
    instance: PlacementInstance,
    placement: Placement,
    *,
    termination: str | None = None,
    versions: tuple[tuple[str, str], ...] = (),
) -> tuple[Certificate, ...]:
    """Return one certificate per layer: the peak of a placement and its lower bound.

    Parameters
    ----------
    termination
        Why the search ended; left out, whether the numbers of a layer meet.
    versions
        Pairs (package, version) that took part beside NumPy.

    Raises
    ------
    InfeasibleError
        When the placement does not fit the instance.
    """
    require_feasible(check(instance, placement), "the placement")
    peak_L = evaluate(instance, placement).peak_L.tolist()
    peak_bounds = bounds.peak_bounds(instance)
    return tuple(
        Certificate(
            problem="placement",
            instance_digest=instance.digest,
            upper=peak,
            witness={"layer": layer, "slot_E": slot_E},
            bounds=(bound,),
            termination=termination or _termination(peak, bound.value),
            versions=(("numpy", np.__version__), *versions),
        )
        for layer, (peak, bound, slot_E) in enumerate(
            zip(peak_L, peak_bounds, placement.slot_LE.tolist(), strict=True)
        )
    )


def recheck(certificate: Certificate, instance: PlacementInstance) -> int:
    """Check a certificate without a solver; return its best arithmetic bound.

    The witness is checked and evaluated, and every arithmetic bound is recomputed from
    its evidence. A solver's bound is a claim that cannot be checked this way.

    Raises
    ------
    CertificateError
        When the certificate is about something else, or anything in it does not hold.
    """
    certificate.require_about("placement", instance.digest)
    layer = _recheck_witness(certificate, instance)
    arithmetic = [b for b in certificate.bounds if b.kind == "arithmetic"]
    for bound in arithmetic:
        value = bounds.recheck(instance, bound)
        if (bound.evidence["layer"], bound.value) != (layer, value):
            raise CertificateError(
                f"bound {bound.name!r} claims {bound.value} for layer {layer};"
                f" recomputed it is {value} for layer {bound.evidence['layer']}"
            )
    return max((bound.value for bound in arithmetic), default=0)


def _recheck_witness(certificate: Certificate, instance: PlacementInstance) -> int:
    """Check the slots and the peak of the witness; return its layer."""
    witness = certificate.witness
    if set(witness) != {"layer", "slot_E"}:
        raise CertificateError(
            f"the witness holds {sorted(witness)}; it needs layer and slot_E"
        )
    layer, num_layers = witness["layer"], instance.load_LE.shape[0]
    if type(layer) is not int or not 0 <= layer < num_layers:
        raise CertificateError(
            f"the witness is about layer {layer!r}; the instance has {num_layers}"
        )
    ranks = instance.num_ep_ranks
    one = replace(instance, load_LE=instance.load_LE[layer : layer + 1])
    try:
        slot_LE = np.array([witness["slot_E"]])
        placement = Placement(slot_LE=slot_LE, num_ep_ranks=ranks)
        require_feasible(check(one, placement), "the witness")
    except (TypeError, ValueError, OverflowError) as error:
        raise CertificateError(f"the witness does not hold: {error}") from error
    peak = int(evaluate(one, placement).peak_L[0])
    if peak != certificate.upper:
        raise CertificateError(
            f"the witness has a peak of {peak}; the certificate says"
            f" {certificate.upper}"
        )
    return layer


def _termination(peak: int, bound: int) -> str:
    return "bound met" if peak == bound else "heuristics ended above the bound"
