"""Engine for Theano 1.0, and fixes for it. This file imports nothing, because `import_fixes` must run before Theano."""
