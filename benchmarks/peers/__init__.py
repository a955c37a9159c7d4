"""Peers: alternatives that a user could choose, each a group of processes that idle until they are measured."""
