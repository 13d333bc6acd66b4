"""The entry: `torchrun ... -m rpopt.trainer --config run.toml --out folder`."""

import argparse
import logging
import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from rpopt.errors import RpoptError
from rpopt.trainer.config import Config, load_config
from rpopt.trainer.loop import Trainer
from rpopt.trainer.parallel import parallel


def main() -> int:
    """Run one rank; return 2 for a mistake of the user."""
    parser = argparse.ArgumentParser(prog="rpopt.trainer", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="TOML file")
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    parser.add_argument(
        "--resume", action="store_true", help="go on after the last checkpoint in --out"
    )
    options = parser.parse_args()
    is_first = os.environ.get("RANK", "0") == "0"
    level = logging.INFO if is_first else logging.WARNING
    logging.basicConfig(level=level, format="%(asctime)s %(name)s: %(message)s")
    try:
        config = load_config(options.config)
        device = _set_up(config)
        Trainer(config, parallel(config.ep), device).run(
            options.out, resume=options.resume
        )
    except RpoptError as error:
        if is_first:
            print(f"error: {error}", file=sys.stderr)
        return 2
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    return 0


def _set_up(config: Config) -> torch.device:
    """Join the other processes, or a group of one without torchrun."""
    limit = timedelta(seconds=config.planning.timeout_s)
    has_gpu = torch.cuda.is_available()
    backend = "nccl" if has_gpu else "gloo"
    device = torch.device("cpu")
    if has_gpu:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    os.environ.setdefault("RANK", "0")  # without torchrun: a group of one
    os.environ.setdefault("WORLD_SIZE", "1")
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "0")
    dist.init_process_group(backend, timeout=limit)
    return device


if __name__ == "__main__":
    sys.exit(main())
