"""The rules of `synkhronos.sharding` for operations that tensor libraries have in common.

Each is a function from a node to its rule; what it must know of the library comes with a `Lengths`.

``elementwise``  single elements, reductions          ``indices``  basic and advanced, and masks
``shapes``       lengths, allocation, joining          ``nested``   graphs inside, branches, loops
``along``        one axis after another; products
"""
