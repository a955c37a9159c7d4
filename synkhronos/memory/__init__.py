"""Shared memory: who allocates it, how an array in it travels, and how others attach it."""
