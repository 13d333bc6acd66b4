"""Configurations of the studies; see `rpopt.io.config`."""

from rpopt.io.config import read_config

__all__ = ["read_config"]
