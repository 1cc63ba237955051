"""Jobs: the file that says what to train, its data, running it, and predicting with the result."""
