"""Other frameworks: TensorFlow, MPI, and the inventory and installation of frameworks."""
