"""The mathematics of the paper: topology, sampling, objective, local steps, averaging, the round."""
