"""A collective: every rank is given the value of the rank before it."""

from synkhronos.collectives.arguments import checked
from synkhronos.collectives.command import CollectiveCommand, taken


class Rotate(CollectiveCommand):
    """Give every rank the values of the rank before it."""

    title = "rotate"

    def run(self, context):
        _, arrays = context.bind(self.numbers)  # this rank's values, where the others can read them
        handles = context.transport.exchange([context.pool.handle(array) for array in arrays])
        before = [context.pools.attach(handle) for handle in handles[context.rank - 1]]
        results = taken(context, self.numbers, before, [None] * len(before))
        context.commit_values(self.numbers, results)  # on all ranks, or on none


def rotate(shared_vars):
    """Give every rank the values of the rank before it: ``x_r := x_{r-1}``, and ``x_0 := x_{n-1}``."""
    variables = checked(shared_vars)
    variables.session.run(Rotate(variables.numbers))
