"""Layout: samples over rows and data-parallel ranks, for the smallest J."""
