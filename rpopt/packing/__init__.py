"""Packing: the fewest cells under the token cap, and from them the number of rows."""
