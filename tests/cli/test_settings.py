"""Settings from a file, from flags, and from both."""

import argparse
from fractions import Fraction
from pathlib import Path

import pytest

from rpopt.cli.settings import Settings, add_flags, read_settings, write_settings
from rpopt.cost import AttentionClass, CostModel
from rpopt.errors import InstanceError
from rpopt.presets import preset
from rpopt.rules import PackingRules
from rpopt.topology import Topology

FILE = """
[topology]
dp = 4
ep = 2

[rules]
token_cap = 128
dummies = true

[cost]
c1 = 1
c2 = "1/32"
omega = 0.5
"""


def settings(*flags: str) -> Settings:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    return read_settings(parser.parse_args(flags))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "step.toml"
    path.write_text(FILE)
    return path


def cost(c1: int = 1, omega: Fraction = Fraction(1, 2)) -> CostModel:
    attention = (AttentionClass(c1=c1, c2=Fraction(1, 32)),)
    return CostModel(attention=attention, omega=omega)


def test_a_file_alone(config: Path) -> None:
    assert settings(f"--config={config}") == (
        Topology(dp=4, ep=2),
        PackingRules(token_cap=128, dummies=True),
        cost(),
    )


def test_flags_alone() -> None:
    flags = "--dp=4 --ep=2 --token-cap=128 --dummies --c1=1 --c2=1/32 --omega=0.5"
    assert settings(*flags.split()) == (
        Topology(dp=4, ep=2),
        PackingRules(token_cap=128, dummies=True),
        cost(),
    )


def test_a_flag_wins(config: Path) -> None:
    flags = ("--dp=8", "--coupling=row", "--token-cap=99", "--c1=3", "--omega=0")
    assert settings(f"--config={config}", *flags) == (
        Topology(dp=8, ep=2, coupling="row"),
        PackingRules(token_cap=99, dummies=True),
        cost(3, Fraction(0)),
    )


def test_a_preset_and_a_share() -> None:
    flags = ("--dp=4", "--ep=2", "--token-cap=9", "--preset=gpt-oss-20b")
    assert settings(*flags)[2] == preset("gpt-oss-20b")
    shared = settings(*flags, "--omega=1/4")[2]
    assert shared.omega == Fraction(1, 4)
    assert shared.attention == preset("gpt-oss-20b").attention


@pytest.mark.parametrize(
    "cost_model",
    [
        cost(),
        CostModel(omega=1, layer_weight_L=(1, Fraction(2, 3)), name='a "b"'),
        CostModel(
            attention=(AttentionClass(c2=1), AttentionClass(name="linear")),
            expert_per_copy=Fraction(1, 7),
            unit="flop",
        ),
        preset("Ling-3.0-tiny"),
    ],
)
def test_written_settings_are_read_back(tmp_path: Path, cost_model: CostModel) -> None:
    written = (
        Topology(dp=4, ep=2, tp=1, shard_of_rank_D=[0, 1, 0, 1], coupling="row"),
        PackingRules(token_cap=64, max_samples_per_cell=3, row_order="largest_first"),
        cost_model,
    )
    path = tmp_path / "a.toml"
    write_settings(path, *written)
    assert settings(f"--config={path}") == written


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("[rules]", "[rule]", ("unknown table [rule]", "'rules'")),
        ("[topology]", "speed = 1\n[topology]", ("unknown table [speed]",)),
        (
            "token_cap",
            "token_limit",
            ("unknown key 'token_limit' in [rules]", "token_cap"),
        ),
        ("dp = 4", "", ("dp is missing", "--dp")),
        ("token_cap = 128", "", ("token_cap is missing", "--token-cap")),
        ("dp = 4", "dp = 4.5", ("dp = 4.5",)),
        ("dp = 4", 'dp = "4"', ("dp = '4'",)),
        ("dp = 4", "dp = 5", ("dp = 5 is not a multiple of the 2 ranks",)),
        ("dp = 4", "dp = 4\nshard_of_rank_D = 3", ("shard_of_rank_D has 0 axes",)),
        ("token_cap = 128", "token_cap = -1", ("token_cap = -1",)),
        ("dummies = true", 'dummies = "no"', ("dummies = 'no'",)),
        ("omega = 0.5", "omega = 1.5", ("omega = 1.5 lies outside [0, 1]",)),
        ("omega = 0.5", "omega = nan", ("omega = nan", "finite")),
        ("omega = 0.5", "", ("neither omega nor expert_per_copy",)),
        ("c1 = 1", "c1 = nan", ("c1 = nan", "not a finite number")),
        ("c1 = 1", "c1 = -1", ("c1 = -1", "negative")),
        ("c1 = 1", "c3 = 1", ("unknown key 'c3' in [cost]",)),
        ("c1 = 1", "attention = [{c1 = 1}]", ("one form",)),
        (
            'c1 = 1\nc2 = "1/32"',
            "attention = [{c3 = 1}]",
            ("attention in [cost]", "c2"),
        ),
        ('c1 = 1\nc2 = "1/32"', "attention = 3", ("attention in [cost]", "got 3")),
        ('c1 = 1\nc2 = "1/32"', "attention = []", ("at least one attention class",)),
        ("omega = 0.5", "omega = 0.5\nlayer_weight_L = 3", ("layer_weight_L", "list")),
        ("omega = 0.5", 'omega = 0.5\nunit = "hour"', ("unit = 'hour'",)),
        ("omega = 0.5", 'preset = "OLMoE-1B-7B"', ("already sets ['c1', 'c2']",)),
        ("[cost]", "[cost]\npreset = 3", ("preset",)),
        ("dp = 4", "dp = ", ("not valid TOML",)),
        ("dp = 4", "dp = 4\ndp = 5", ("not valid TOML",)),
    ],
)
def test_broken_files_are_refused(
    config: Path, old: str, new: str, words: tuple[str, ...]
) -> None:
    assert old in FILE
    config.write_text(FILE.replace(old, new, 1))
    with pytest.raises(InstanceError) as caught:
        settings(f"--config={config}")
    message = str(caught.value)
    assert all(word in message for word in words), message


def test_flags_change_sizes_that_were_written(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    write_settings(path, Topology(dp=4, ep=2), PackingRules(token_cap=8), cost())
    assert settings(f"--config={path}", "--dp=8")[0] == Topology(dp=8, ep=2)


def test_no_cost_model_is_an_error() -> None:
    with pytest.raises(InstanceError, match="the cost model is missing; give --preset"):
        settings("--dp=4", "--ep=2", "--token-cap=8")


def test_unknown_presets_are_named() -> None:
    with pytest.raises(InstanceError, match="'GPT-9'"):
        settings("--dp=4", "--ep=2", "--token-cap=8", "--preset=GPT-9")
