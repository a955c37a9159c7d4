"""NumPy-only engine for tests of the library, and of programs that use the library."""
