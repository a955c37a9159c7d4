"""Engine for Theano 1.0, with fixes for Theano's import and use. Nothing is imported here; see `import_fixes`."""
