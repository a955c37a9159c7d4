"""Predict what more ranks would give a program, from profiles of it: ``python -m synkhronos predict``.

::

    profile.json, n = 1 --+                                  +--> text     a table, a plot, sentences
                          +--> steps --> fitting --> model --+
    profile.json, n = 2 --+                ^                 +--> drawing  prediction.svg
                                         links

Nothing here needs ranks, or an engine: profiles are files, and the rest is arithmetic.
"""
