"""PyTensor 3 as an engine. Nothing is imported here."""
