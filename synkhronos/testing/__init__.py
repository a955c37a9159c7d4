"""What tests of the library, and of programs that use it, run in: an engine that needs only NumPy."""
