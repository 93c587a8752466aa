"""A run's steps through the compilers of TPUs and GPUs, without devices."""
