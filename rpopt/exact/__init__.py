"""Exact methods that are not one model: column generation, diving, arc fixing."""
