"""Both engines, against each other and against the evaluator."""

import numpy as np
import pytest

from rpopt.anneal.compiled import CompiledEngine
from rpopt.anneal.engines import make_engine
from rpopt.anneal.moves import PATTERN, Kind
from rpopt.anneal.run import Engine
from rpopt.anneal.tables import Geometry
from rpopt.layout.evaluate import evaluate
from rpopt.layout.instance import LayoutInstance, check
from rpopt.plans import Layout
from rpopt.topology import Coupling
from tests.anneal.instances import COUPLINGS, random_instance

TEMPERATURES = (10**9, 3000, 100, 0)
REPLICAS = 5


def population(
    name: str,
    instance: LayoutInstance,
    layout: Layout,
    *,
    threads: int = 1,
    wide: bool | None = None,
    slots: range = range(REPLICAS),
) -> tuple[Engine, Geometry]:
    geometry = Geometry(instance, wide=wide)
    start_AI = np.array([geometry.cells(layout)])
    engine = make_engine(name, geometry, start_AI, slots, 7, "cpu", threads)
    return engine, geometry


def same(one: Engine, other: Engine) -> bool:
    return (
        np.array_equal(one.energies(), other.energies())
        and np.array_equal(one.slowest(), other.slowest())
        and all(np.array_equal(one.cells(b), other.cells(b)) for b in range(REPLICAS))
        and np.array_equal(one.accepted(), other.accepted())
    )


@pytest.mark.parametrize("coupling", COUPLINGS)
@pytest.mark.parametrize("seed", range(12))
def test_torch_and_compiled_walk_the_same_path(seed: int, coupling: Coupling) -> None:
    instance, layout = random_instance(seed, coupling=coupling)
    reference, _ = population("torch", instance, layout)
    compiled, _ = population("compiled", instance, layout)
    first = 0
    for temperature in TEMPERATURES:
        for count in (1, 16, 23):
            reference.run(temperature, first, count)
            compiled.run(temperature, first, count)
            first += count
            assert same(reference, compiled)
        parents = (3, 1, 1, 3, 4)
        reference.copy(parents)
        compiled.copy(parents)


@pytest.mark.parametrize("coupling", COUPLINGS)
@pytest.mark.parametrize("seed", range(30))
def test_replicas_stay_feasible_and_their_energy_exact(
    seed: int, coupling: Coupling
) -> None:
    instance, layout = random_instance(seed, coupling=coupling)
    engine, geometry = population("compiled", instance, layout)
    first = 0
    for temperature in TEMPERATURES:
        engine.run(temperature, first, 200)
        first += 200
        for b in range(REPLICAS):
            found = geometry.layout(engine.cells(b))
            assert check(instance, found) == []
            cost = evaluate(instance, found)
            total = int(cost.group_ticks_RS.sum())
            assert engine.slowest()[b] == cost.j_ticks
            mean = total >> geometry.tables.mean_shift
            assert engine.energies()[b] == cost.j_ticks + mean


@pytest.mark.parametrize("seed", range(4))
def test_the_number_of_threads_does_not_matter(seed: int) -> None:
    instance, layout = random_instance(seed)
    one, _ = population("compiled", instance, layout)
    two, _ = population("compiled", instance, layout, threads=2)
    for engine in (one, two):
        engine.run(1000, 0, 300)
    assert same(one, two)
    two.close()


def test_a_part_of_the_population_walks_as_in_the_whole() -> None:
    instance, layout = random_instance(8, num_items=40)
    whole, _ = population("compiled", instance, layout)
    for name in ("torch", "compiled"):
        part, _ = population(name, instance, layout, slots=range(2, 4))
        part.run(1000, 0, 100)
        if name == "torch":
            whole.run(1000, 0, 100)
        assert np.array_equal(part.energies(), whole.energies()[2:4])


@pytest.mark.slow  # compiles the loop for the other types
@pytest.mark.parametrize("coupling", COUPLINGS)
def test_wide_and_narrow_loops_agree(coupling: Coupling) -> None:
    instance, layout = random_instance(5, coupling=coupling)
    narrow, _ = population("compiled", instance, layout, wide=False)
    wide, _ = population("compiled", instance, layout, wide=True)
    for engine in (narrow, wide):
        engine.run(1000, 0, 600)
    assert same(narrow, wide)


@pytest.mark.parametrize("coupling", COUPLINGS)
def test_wide_and_narrow_tensors_agree(coupling: Coupling) -> None:
    instance, layout = random_instance(5, coupling=coupling)
    narrow, _ = population("torch", instance, layout, wide=False)
    wide, _ = population("torch", instance, layout, wide=True)
    for engine in (narrow, wide):
        engine.run(1000, 0, 60)
    assert same(narrow, wide)


def test_types_are_wide_where_small_ones_could_overflow() -> None:
    instance, _ = random_instance(3, num_layers=1, num_ranks=2)
    assert not Geometry(instance).wide
    parts = {name: getattr(instance, name) for name in instance.__slots__}
    parts["load_ILP"] = np.full_like(instance.load_ILP, 2**31 - 1)
    assert Geometry(LayoutInstance(**parts)).wide


def test_every_kind_of_move_is_accepted_somewhere() -> None:
    instance, layout = random_instance(
        1, num_rows=2, num_shards=2, shard_size=2, num_items=40, slack=60
    )
    for name in ("torch", "compiled"):
        engine, _ = population(name, instance, layout)
        engine.run(10**9, 0, 10 * len(PATTERN))
        assert (engine.accepted() > 0).all()
        assert engine.accepted().size == len(Kind)


def test_layouts_and_cells_are_two_views_of_one_thing() -> None:
    for seed in range(10):
        instance, layout = random_instance(seed)
        geometry = Geometry(instance)
        assert geometry.layout(geometry.cells(layout)) == layout


def test_memory_per_replica_is_four_bytes_per_item_and_the_cells_and_groups() -> None:
    instance, layout = random_instance(
        2, num_rows=2, num_shards=2, shard_size=2, num_items=3000, num_layers=1
    )
    engine, _ = population("compiled", instance, layout)
    assert isinstance(engine, CompiledEngine)
    per_item = sum(a.nbytes for a in engine._state if a.shape[1] == 3000) / REPLICAS
    assert per_item == 4 * 3000
