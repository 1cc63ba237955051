"""A client of a silo."""
