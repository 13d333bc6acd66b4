"""Placement: experts over expert-parallel ranks, one problem per MoE layer."""
