"""`synkhronos.function` and what it returns."""
