"""The planner inside a running trainer: collective planning, experts that move."""
