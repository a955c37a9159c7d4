"""Data-parallel Theano: write one serial program, run every call on all devices at once."""
