"""How arrays move between ranks: the collectives, over one medium each.

::

    `base`            what each must promise: lists of arrays in, `Pending` or complete results out
    `shared_memory`   arrays on the host: every rank reads the others' pools;  `layouts` keeps where they lie
    `gpu`             wraps it: arrays on the ranks' devices go through `nccl` if possible, else through the host
"""
