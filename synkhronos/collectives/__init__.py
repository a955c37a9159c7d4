"""Collectives over shared variables: one command and one published function per module."""
