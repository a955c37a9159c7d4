"""An engine that needs only NumPy: for tests of the library, and of programs that use it."""
