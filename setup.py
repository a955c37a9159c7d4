"""Build settings that pyproject.toml cannot express: the C kernels, and the license for old and new setuptools."""

import platform
import sys
import sysconfig

import setuptools

# One build with the limited API works on CPython 3.11 and later. All other Pythons need their own builds.
IS_LIMITED = (
    platform.python_implementation() == "CPython"
    and sys.version_info >= (3, 11)
    and not sysconfig.get_config_var("Py_GIL_DISABLED")
)

setuptools.setup(
    # The extension is optional: without a compiler, the library uses NumPy instead. (-O3 vectorizes the loops.)
    ext_modules=[
        setuptools.Extension(
            "synkhronos.kernels._kernels",
            ["synkhronos/kernels/_kernels.c", "synkhronos/kernels/_meeting.c"],
            define_macros=[("Py_LIMITED_API", "0x030B0000")] if IS_LIMITED else [],
            extra_compile_args=["-O3", "-ffp-contract=off", "-pthread"],
            extra_link_args=["-pthread"],  # semaphores, with glibc before 2.34
            py_limited_api=IS_LIMITED,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if IS_LIMITED else {},
    # An SPDX expression. Only setuptools 77 and later accept the new name; Python 3.8 supports at most setuptools 75.3.
    **{"license_expression" if int(setuptools.__version__.split(".")[0]) >= 77 else "license": "MIT"},
)
