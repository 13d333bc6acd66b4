"""A compact Mixture-of-Experts RL trainer on torch.distributed that reroutes and packs.

    torchrun --standalone --nproc-per-node 2 -m rpopt.trainer --config grpo.toml

Every rank is one data-parallel rank; consecutive ranks share an expert-parallel group.
"""
