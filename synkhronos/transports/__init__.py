"""Transports: collectives between ranks, one class per medium.

::

    `base`            the interface: lists of arrays in, `Pending` or complete results out
    `shared_memory`   arrays in host memory: every rank reads its peers' pools; `layouts` caches their addresses
    `gpu`             wraps `shared_memory`: device arrays use `nccl` if possible, otherwise host memory
"""
