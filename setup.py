"""What pyproject.toml cannot say: the kernels in C, and the license for old and new setuptools."""

import platform
import sys
import sysconfig

import setuptools

# One build serves CPython 3.11 and later; older Pythons, free-threaded ones and others than CPython have one each.
IS_LIMITED = (
    platform.python_implementation() == "CPython"
    and sys.version_info >= (3, 11)
    and not sysconfig.get_config_var("Py_GIL_DISABLED")
)

setuptools.setup(
    # Without a compiler there is none, and NumPy does its work. (-O3: the loops are vectorised.)
    ext_modules=[
        setuptools.Extension(
            "synkhronos.kernels._kernels",
            ["synkhronos/kernels/_kernels.c"],
            define_macros=[("Py_LIMITED_API", "0x030B0000")] if IS_LIMITED else [],
            extra_compile_args=["-O3", "-ffp-contract=off"],
            py_limited_api=IS_LIMITED,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if IS_LIMITED else {},
    # An SPDX expression; the newest setuptools for Python 3.8, 75.3, knows it under the old name alone.
    **{"license_expression" if int(setuptools.__version__.split(".")[0]) >= 77 else "license": "MIT"},
)
