"""Theano 1.0 as an engine, and what it needs to run at all. Nothing is imported here: see `import_fixes`."""
