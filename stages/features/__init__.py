"""Features: what is known of each column of a data set, and what is learnt of it from the training split."""
