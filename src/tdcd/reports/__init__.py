"""Pages about runs. Reads result files only; knows nothing of how they came to be."""
