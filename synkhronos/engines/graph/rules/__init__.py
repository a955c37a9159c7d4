"""Functions that return the `synkhronos.sharding` rule of a node, for operations that all tensor libraries have."""
