"""The protocol: tdcd.proto and what `make protocol` generates from it."""
