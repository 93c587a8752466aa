"""A TensorFlow graph that reads texts and answers them."""
