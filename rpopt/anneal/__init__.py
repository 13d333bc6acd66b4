"""Population annealing over layouts."""

from rpopt.anneal.loop import anneal
from rpopt.anneal.result import AnnealResult, TemperatureStatistics
from rpopt.anneal.run import HistoryPoint

__all__ = ["AnnealResult", "HistoryPoint", "TemperatureStatistics", "anneal"]
