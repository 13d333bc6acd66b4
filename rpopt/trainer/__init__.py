r"""A compact Mixture-of-Experts RL trainer on torch.distributed: reroutes and packs.

    torchrun --standalone --nproc-per-node 2 -m rpopt.trainer \
        --config rpopt/trainer/configs/grpo.toml --out runs/grpo

Every rank is one data-parallel rank; consecutive ranks share an expert-parallel group.
"""
