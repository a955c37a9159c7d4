"""Predict a program's performance on more ranks from its profiles alone: ``python -m synkhronos predict``.

::

    profile.json, n = 1 --+                                  +--> text     a table, a plot, sentences
                          +--> steps --> fitting --> model --+
    profile.json, n = 2 --+                ^                 +--> drawing  prediction.svg
                                         links
"""
