"""Sphinx configuration of these pages; ``make docs`` builds them."""

import ast
import importlib.util
import os
import sys
import types
from pathlib import Path

sys.path.insert(0, os.path.abspath(".."))

import synkhronos  # noqa: E402

project = "Synkhronos"
copyright = "2026, the Synkhronos developers"
release = version = synkhronos.__version__

extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "myst_parser"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"Synkhronos {version}"
html_static_path = ["_static"]
html_css_files = ["pictures.css"]
html_copy_source = False

# `name` in a docstring is a link if it is one of ours, and plain code if not.
default_role = "py:obj"
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
# The extensions import Theano, and one imports Lasagne, which is not installed with PyTensor. The pages need neither.
autodoc_mock_imports = ["theano"] + ["lasagne"] * (importlib.util.find_spec("lasagne") is None)
# The docstrings say what an argument may be; the annotations are for mypy.
autodoc_typehints = "none"
autodoc_member_order = "bysource"
# Headings of the Markdown pages can be linked to.
myst_heading_anchors = 3
# performance.md refers to benchmarks/README.md, which is not a page (a test checks that the file exists). The parts
# that `make bench` writes have level-3 headings, whatever headings are around them.
suppress_warnings = ["myst.xref_missing", "myst.header"]


def stand_in(module, **homes):
    """Register a stand-in for a module, with the signatures and docstrings of functions in its folder's source files.

    The module need not be importable here: `synkhronos.extensions.pymc` needs PyMC, but the pages do not.
    """
    folder = Path(synkhronos.__file__).parents[1].joinpath(*module.split("."))
    sys.modules[module] = types.ModuleType(module, "")
    for name, home in homes.items():
        tree = ast.parse((folder / (home + ".py")).read_text(encoding="utf-8"))
        (function,) = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
        function.body, function.returns = function.body[:1], None
        for argument in function.args.args + function.args.kwonlyargs:
            argument.annotation = None
        exec(compile(ast.Module([function], []), module, "exec"), sys.modules[module].__dict__)


stand_in(
    "synkhronos.extensions.pymc",
    data_parallel="data_parallel",
    compute_log_likelihood="pointwise",
    sample_posterior_predictive="predictive",
)
