"""The loader, which is `synkhronos.loader`, under the name of an extension."""

from synkhronos import loader
from synkhronos.loading import Loader

__all__ = ["Loader", "loader"]
