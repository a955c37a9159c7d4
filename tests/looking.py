"""How tests look at, and change, other ranks' values without the collectives that they test."""

import numpy as np

from synkhronos.command import Command


class Peek(Command):
    """Return a copy of this rank's value."""

    def __init__(self, number):
        self.number = number

    def run(self, context):
        engine, variable = context.shareds[self.number]
        return np.array(engine.get(variable))


class Poke(Command):
    """Put a fresh private array into one rank's storage, as an update of an engine may do."""

    def __init__(self, number, values):
        self.number, self.values = number, values

    def run(self, context):
        engine, variable = context.shareds[self.number]
        engine.put(variable, np.array(self.values[context.rank]))


class Tables(Command):
    """Return what this rank's tables hold: how many functions and variables, and the bytes of its pool."""

    def run(self, context):
        return len(context.functions), len(context.shareds), context.pool.used
