"""The recipes as functions of one engine, built once; and the ranks' values, read without any collective."""

import os
import tempfile
import warnings

import numpy as np
from recipes import INPUTS, OF_ENGINE, RANDOM, RECIPES, SHARED, STATES, WHOLE, axis_of_rows, evaluate
from vocabulary import WORDS, state_of

import synkhronos as synk
from synkhronos.extensions import checkpoint
from synkhronos.replication.replicator import replicator_of
from synkhronos.runtime.command import Command


class Peek(Command):
    """Return copies of this rank's values of shared variables."""

    def __init__(self, numbers):
        self.numbers = numbers

    def run(self, context):
        values = [engine.get(variable) for engine, variable in map(context.registry.shareds.get, self.numbers)]
        generators = (np.random.RandomState, np.random.Generator)
        return [state_of(value) if isinstance(value, generators) else np.array(value) for value in values]


class Quiet(Command):
    """Disable this rank's warnings, including those about overflow."""

    def run(self, context):
        warnings.simplefilter("ignore")
        np.seterr(all="ignore")


class Library:
    """All functions and shared variables of the random programs.

    Attributes
    ----------
    engine : str
    functions : dict
        The synk Functions by the names of recipes.
    variables : dict
        The shared variables by name.
    started : list of Started
        Collectives that the program has not waited for.
    saved : list of (list of str, bytes)
        Checkpoints: the names of the variables, and the file's content.
    """

    def __init__(self, engine, recipes=None):
        recipes = OF_ENGINE.get(engine, RECIPES) if recipes is None else recipes
        self.engine, self.words, self.started = engine, WORDS[engine](), []
        self.saved = []
        self._assigning = {}  # by name, functions of the library alone that update a variable
        self._holding = {}  # by name, functions with an input that has a variable's storage, and these inputs
        self.variables = {
            name: self.words.shared(
                self.words.generator_of(state_of(np.random.RandomState(1)))
                if name in RANDOM
                else np.ones([2 if length is None else length for length in shape], dtype),
                name=name,
            )
            for name, (dtype, shape) in SHARED.items()
        }
        # The ranks must have all variables from the first step on.
        self._all = synk.function([], [(variable, None) for variable in self.variables.values()], **self.words.options)
        self.functions = {recipe.name: self._build(recipe) for recipe in recipes}

    def _build(self, recipe):
        words, values = self.words, dict(self.variables)
        words.rows = recipe.rows
        for name in recipe.inputs:
            dtype, shape, broadcastable = WHOLE[name] if name in WHOLE else INPUTS[name] + (None,)
            values[name] = words.variable(name, dtype, len(shape) + (name in INPUTS), broadcastable)
        for name, of in recipe.like.items():
            values[name] = words.variable(name, SHARED[of][0], len(SHARED[of][1]))
        givens = {values[name]: evaluate(formula, words, values) for name, formula in recipe.givens.items()}
        outputs = [
            (output.value(words, values),) + ((output.op,) if output.given and output.op != "default" else ())
            for output in recipe.outputs
        ]
        outputs = [output if len(output) == 2 else output[0] for output in outputs]
        if recipe.form == "single":
            outputs = outputs[0]
        elif self._is_dict(recipe):
            outputs = dict(zip(recipe.keys, outputs))
        updates = [
            (values[update.target], update.value(words, values)) + (() if update.op == "default" else (update.op,))
            for update in recipe.updates
        ]
        options = dict(words.stable if recipe.stable else words.options, name=recipe.name.replace(" ", "_"))
        if recipe.rows is not None:
            options["rows"] = recipe.rows
        if recipe.inplace and self.engine == "numpy":
            options["inplace"] = True
        for update in recipe.default_updates:
            values[update.target].default_update = update.value(words, values)
        try:
            return synk.function(
                [
                    *[self._input(recipe, values[name]) for name in recipe.scattered.split()],
                    *[synk.sharded(values[name], axis_of_rows(name)) for name in recipe.states.split()],
                ],
                outputs,
                [values[name] for name in recipe.whole.split()],
                updates,
                givens,
                [values[name] for name in recipe.sliceable.split()],
                exact=recipe.exact,
                **options,
            )
        finally:
            for update in recipe.default_updates:
                values[update.target].default_update = None
                if self.engine == "theano":  # Theano would treat None as an invalid default update
                    del values[update.target].default_update

    def _is_dict(self, recipe):
        return recipe.form == "dict" and self.words.returns_dicts

    def asked(self, recipe, options):
        """Return the options of a call; ``output_subset`` has positions if the engine returns no dicts."""
        subset = options.get("output_subset")
        if subset is None or recipe.form != "dict" or self.words.returns_dicts:
            return options
        return dict(options, output_subset=[recipe.keys.index(key) for key in subset])

    def listed(self, recipe, results, options):
        """Return the results of a call with these options as a list."""
        subset = options.get("output_subset")
        if self._is_dict(recipe):
            return [results[key] for key in (recipe.keys if subset is None else subset)]
        return [results] if recipe.form == "single" and subset is None else list(results)

    def _input(self, recipe, variable):
        return self.words.In(variable, mutable=True) if recipe.mutable else variable

    def start(self, initial):
        """Set the master's variables to their initial values, before the variables are sent to the ranks."""
        for name, value in initial.items():
            self.variables[name].set_value(self.words.generator_of(value) if name in RANDOM else value)

    def put(self, name, value, way):
        """Set the master's variable to a value in one of the ways of `steps.WAYS`."""
        variable = self.variables[name]
        held = None if way == "kept" else variable.get_value(borrow=True)
        fits = isinstance(held, np.ndarray) and held.shape == value.shape and held.flags.writeable and held.ndim
        if way == "lent" and fits:
            held[...] = value
        elif way == "lent and set" and fits:
            held[...] = value
            variable.set_value(held, borrow=True)
        elif way == "borrowed and written":
            given = np.zeros_like(value)
            variable.set_value(given, borrow=True)
            given[...] = value
            if variable.get_value(borrow=True) is not given:
                variable.set_value(value)
        elif way == "kept" and name not in STATES:
            self._write_kept(variable, value.copy(), self.kept.get(name))
        elif way == "another variable":
            variable.clone().set_value(value)
        elif way == "a function" and self.engine != "numpy":
            if name not in self._assigning:
                new = self.words.variable("new", *_type_of(name))
                self._assigning[name] = self.words.function(new, [(variable, new)])
            self._assigning[name](value)
        elif way == "f[s]" and self.engine == "theano":
            if name not in self._holding:
                s = self.words.variable("s", *_type_of(name))
                function = synk.function([], bcast_inputs=[self.words.In(s, value=variable)], **self.words.options)
                self._holding[name] = function, s
            function, s = self._holding[name]
            function[s] = value.copy()
        else:
            variable.set_value(value.copy(), borrow=way != "set_value")

    def _write_kept(self, variable, value, kept):
        """Write to the array that the variable has borrowed in an earlier step; otherwise, let it borrow the value."""
        if kept is not None and kept.shape == value.shape and kept.ndim:
            kept[...] = value
        else:
            variable.set_value(value, borrow=True)
            self.kept.pop(variable.name, None)
            if variable.get_value(borrow=True) is value:
                self.kept[variable.name] = value

    def save(self, names):
        """Save variables in a checkpoint."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "checkpoint.npz")
            checkpoint.save(path, [self.variables[name] for name in names], number=len(self.saved))
            with open(path, "rb") as file:
                self.saved.append((names, file.read()))

    def load(self, i):
        """Load a saved checkpoint."""
        names, content = self.saved[i]
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "checkpoint.npz")
            with open(path, "wb") as file:
                file.write(content)
            progress = checkpoint.load(path, [self.variables[name] for name in names])
        assert progress == {"number": i}, f"another checkpoint: {progress}"

    def distribute(self, session):
        """Send the variables to the ranks; functions are sent when they are called."""
        replicator_of(session).ensure([self._all])

    def values(self, session):
        """Return all ranks' values of every shared variable, by name; for states, the program's value with all rows."""
        from synkhronos import engines

        engine, replicator = engines.get(self.engine), replicator_of(session)
        by_rank = session.run(Peek([replicator.find(engine, variable) for variable in self.variables.values()]))
        of_ranks = {name: list(values) for name, values in zip(self.variables, zip(*by_rank))}
        return {**of_ranks, **{name: [self.variables[name].get_value()] * session.size for name in STATES}}


def _type_of(name):
    """Return the dtype and the number of dimensions of a shared variable."""
    dtype, shape = SHARED[name]
    return dtype, len(shape)
