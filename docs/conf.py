"""How Sphinx builds these pages: ``make docs``."""

import os
import sys

sys.path.insert(0, os.path.abspath(".."))

import synkhronos  # noqa: E402

project = "Synkhronos"
copyright = "2026, the Synkhronos developers"
release = version = synkhronos.__version__

extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "alabaster"
html_theme_options = {
    "description": "Data-parallel Theano",
    "fixed_sidebar": True,
}
html_sidebars = {"**": ["about.html", "navigation.html", "searchbox.html"]}
html_copy_source = False

# `name` in a docstring is a link where it is one of ours, and plain code elsewhere.
default_role = "py:obj"
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
# The extensions import Theano, which pages about them do not need.
autodoc_mock_imports = ["theano"]
# The docstrings say what an argument may be; the annotations are for mypy.
autodoc_typehints = "none"
autodoc_member_order = "bysource"
