"""Pyomo formulations of packing, placement and layout, one model per file.

Each model states sets, data, variables and numbered constraints as its page in
docs/formulations does. Building one needs Pyomo only; solving it is the work of
`rpopt.certify`.
"""
