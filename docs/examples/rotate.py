"""A collective: every rank is given the value of the rank before it."""

from synkhronos.collectives.variables import Variables, keep, keys_and_arrays

from synkhronos.runtime.command import Command


class Rotate(Command):
    """Give every rank the values of the rank before it."""

    def __init__(self, numbers):
        self.numbers = numbers  # of the variables, in the ranks' tables

    def run(self, context):
        keys, arrays = keys_and_arrays(context, self.numbers)  # this rank's values, where the others can read them
        handles = context.transport.exchange([context.pool.handle(array) for array in arrays])
        before = handles[context.rank - 1]
        results = [context.transport.store(key, context.pools.attach(handle)) for key, handle in zip(keys, before)]
        keep(context, self.numbers, results)  # on all ranks, or on none


def rotate(shared_vars):
    """Give every rank the values of the rank before it: ``x_r := x_{r-1}``, and ``x_0 := x_{n-1}``."""
    variables = Variables(shared_vars)
    variables.session.run(Rotate(variables.numbers))
