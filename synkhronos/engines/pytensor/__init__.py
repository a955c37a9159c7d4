"""Engine for PyTensor 3. Nothing is imported here."""
