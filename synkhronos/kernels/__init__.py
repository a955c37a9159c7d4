"""Copying and reducing past the caches: the only modules that know of C."""
