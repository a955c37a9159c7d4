"""The steps of random programs: how they are drawn, executed and printed."""

from dataclasses import dataclass, field

import numpy as np
from recipes import BY_NAME, DATA, FIXED, INPUTS, RANDOM, SHARED, STATES, axis_of_rows, fresh
from truth import selected, shares

import synkhronos as synk


@dataclass
class Given:
    """An array argument of a call, in one of several forms: array, list, view with strides, Data, minibatch Data."""

    array: np.ndarray
    form: str = "array"

    def __repr__(self):
        return "{}({}, {!r})".format(
            self.form, np.array2string(self.array, separator=", ", threshold=50), str(self.array.dtype)
        )

    def offered(self, rows=None):
        """Return the argument of the call; a minibatch consists of the selected ``rows``."""
        if self.form == "minibatch":
            batch = self.array[rows]
            return synk.data(np.concatenate([batch, self.array[:1]]), minibatch=True)  # additional rows are ignored
        if self.form == "list":
            return self.array.tolist()
        if self.form == "view":
            return np.ascontiguousarray(self.array[::-1])[::-1] if self.array.ndim else self.array
        return synk.data(self.array) if self.form == "data" else self.array.copy()


def text(*arguments, **options):
    """Return the text of arguments in a call; long ones end in dots, since the seed reproduces them."""
    texts = [f"{argument!r}" for argument in arguments] + ["{}={!r}".format(*item) for item in options.items()]
    return ", ".join(" ".join(text.split()) if len(text) < 300 else text[:300] + " ..." for text in texts)


@dataclass
class Call:
    """Call a function on all ranks, or on the master alone (``as_theano``)."""

    recipe: str
    given: dict
    options: dict = field(default_factory=dict)
    how: str = "call"
    keeps_borrowed = False

    @property
    def is_by_master(self):
        return self.how == "as_theano"

    @property
    def is_common(self):
        return BY_NAME[self.recipe].exact

    def __repr__(self):
        return f"{self.how}[{self.recipe!r}]({text(**self.given, **self.options)})"

    def truth(self, model):
        return getattr(model, self.how)(BY_NAME[self.recipe], self.given, **self.options)

    def run(self, library):
        recipe, function = BY_NAME[self.recipe], library.functions[self.recipe]
        scattered = [value for name, value in self.given.items() if name in INPUTS]
        rows = None
        if scattered and self.options.get("batch") is not None:
            rows = selected(self.options["batch"], min(len(value.array) for value in scattered))
        given = {name: value.offered(rows) for name, value in self.given.items()}
        positional = [given[name] for name in recipe.inputs[: len(recipe.inputs) // 2]]
        named = {name: given[name] for name in recipe.inputs[len(positional) :]}
        call = function.as_theano if self.how == "as_theano" else function
        results = call(*positional, **named, **library.asked(recipe, self.options))
        for name, value in self.given.items():
            left_alone = self.how == "call" or not recipe.mutable
            if left_alone and value.form != "minibatch" and not np.array_equal(np.asarray(given[name]), value.array):
                raise AssertionError(f"the call changed its argument {name}: {given[name]!r}")
        if results is None or not recipe.outputs:
            return []
        return library.listed(recipe, results, self.options)


@dataclass(repr=False)
class Steps(Call):
    """Make several calls of a function in one command."""

    how: str = "steps"

    def run(self, library):
        recipe, function = BY_NAME[self.recipe], library.functions[self.recipe]
        given = {name: value.offered() for name, value in self.given.items()}
        results = function.steps(**given, **library.asked(recipe, self.options))
        if not recipe.outputs:
            return []
        results, subset = library.listed(recipe, results, self.options), self.options.get("output_subset")
        for result, i in zip(results, range(len(recipe.outputs)) if subset is None else map(recipe.keys.index, subset)):
            gathered = recipe.outputs[i].op in ("gather", "c_gather")
            same = len({np.shape(of_step) for of_step in result}) == 1
            if (type(result) is np.ndarray) != (same and not gathered):
                raise AssertionError(f"output {i} of {len(result)} steps came as {type(result).__name__}")
        return [[np.asarray(of_step) for of_step in result] for result in results]


@dataclass
class Collective:
    """Call one of the collectives; ``arguments`` are in the order of its parameters."""

    name: str
    arguments: list
    options: dict = field(default_factory=dict)
    alone: bool = False  # whether a single variable is passed, not a list
    is_by_master = False

    @property
    def keeps_borrowed(self):
        """Whether an array that a variable has borrowed from the program stays its value."""
        return self.name == "broadcast" and len(self.arguments) == 1

    @property
    def is_common(self):
        return self.name == "broadcast" or self.name == "all_reduce" and set(self.options) <= {"op", "into"}

    def __repr__(self):
        return f"{self.name}({text(*self.arguments, **self.options)})"

    def truth(self, model):
        model.check_states(next(argument for argument in self.arguments if isinstance(argument, list)))
        return getattr(model, self.name)(*self.arguments, **self.options)

    def run(self, library):
        arguments, options = [], dict(self.options)
        batch = options.get("batch")
        for argument in self.arguments:
            if isinstance(argument, list) and isinstance(argument[0], str):
                argument = [library.variables[name] for name in argument]
            elif isinstance(argument, list):
                rows = None if batch is None else selected(batch, min(len(value.array) for value in argument))
                argument = [value.offered(rows) for value in argument]
            arguments.append(argument[0] if self.alone and isinstance(argument, list) else argument)
        if isinstance(options.get("weights"), str):
            options["weights"] = library.functions[options["weights"]]
        if "into" in options:
            targets = [library.variables[name] for name in options["into"]]
            options["into"] = targets[0] if self.alone else targets
        result = getattr(synk, self.name)(*arguments, **options)
        if options.get("wait") is False:
            library.started.append(result)
            return None
        if self.name == "in_sync":
            return {name: sorted(ranks) for name, ranks in result.differences.items()}
        return [result] if self.alone and result is not None else result


#: Ways to set a variable's value: ``set_value``, with a copy or with the array itself; writing into an array that was
#: lent or borrowed by the variable, with or without setting it, and also in a later step; a variable with the same
#: storage; a function of the library alone; and ``f[s] = value``, if an input has the variable's storage.
WAYS = (
    "set_value",
    "set_value",
    "borrow",
    "lent",
    "lent and set",
    "borrowed and written",
    "kept",
    "kept",
    "another variable",
    "a function",
    "f[s]",
)


@dataclass
class Put:
    """Set the master's variable to a value, as programs may, in one of the `WAYS`."""

    name: str
    value: Given
    way: str = "set_value"
    is_by_master, is_common = True, False

    @property
    def keeps_borrowed(self):
        return self.way == "kept"

    def __repr__(self):
        return f"{self.name}.set_value({self.value!r})" + f"  # by way of {self.way!r}" * (self.way != "set_value")

    def truth(self, model):
        return model.put(self.name, self.value)

    def run(self, library):
        library.put(self.name, self.value.array, self.way)


@dataclass
class Save:
    """Save variables in a checkpoint."""

    names: list
    is_by_master, is_common, keeps_borrowed = False, False, False

    def __repr__(self):
        return f"saved.append({self.names!r})"

    def truth(self, model):
        return model.save(self.names)

    def run(self, library):
        library.save(self.names)


@dataclass
class Load:
    """Load one of the checkpoints."""

    i: int
    is_by_master, is_common, keeps_borrowed = False, True, False

    def __repr__(self):
        return f"load(saved[{self.i}])"

    def truth(self, model):
        return model.load(self.i)

    def run(self, library):
        library.load(self.i)


@dataclass
class Wait:
    """Wait for one of the collectives that were started."""

    i: int
    is_by_master, is_common, keeps_borrowed = False, False, False

    def __repr__(self):
        return f"started[{self.i}].wait()"

    def truth(self, model):
        return model.wait(self.i)

    def run(self, library):
        library.started.pop(self.i).wait()


@dataclass
class Distribute:
    """Send all functions to the ranks."""

    is_by_master, is_common, keeps_borrowed = False, False, False

    def __repr__(self):
        return "distribute()"

    def truth(self, model):
        return None, {}

    def run(self, library):
        synk.distribute()


class Draw:
    """Draws random steps.

    Parameters
    ----------
    random : random.Random or similar
        The source of all choices: hypothesis's, which can be shrunk, or a plain one.
    names : sequence of str
        The names of the recipes to draw from.
    """

    def __init__(self, random, names):
        self.random, self.names = random, list(names)
        self._last, self._next = None, None

    def chance(self, percent):
        return self.random.randrange(100) < percent

    def initial(self, names):
        return {name: self.value(name, 6 if name in STATES else 4) for name in names}

    def value(self, name, rows):
        seed = self.random.randrange(1 << 16)
        return fresh(name, rows, np.random.RandomState(seed), seed % 2)

    def given(self, name, rows, forms=("array", "data", "array", "data", "view", "list")):
        array = self.value(name, rows)
        form = self.random.choice(forms)
        return Given(array, "array" if form == "list" and not array.size else form)

    def step(self, model):
        """Return a step; if it has no meaning, the caller must draw another one.

        If a call needs variables to be equal on all ranks, a broadcast of differing variables is drawn before it.
        """
        if self._next is not None:
            step, self._next = self._next, None
            return step
        step = self._step(model)
        recipe = BY_NAME[step.recipe] if isinstance(step, Call) and step.how != "as_theano" else None
        differing = model.differing(recipe.in_common) if recipe is not None and recipe.exact else []
        differing = [name for name in differing if name not in model.put_by_program]
        if not differing:
            return step
        self._next = step
        return Collective("broadcast", [differing])

    def _step(self, model):
        if model.kept and self.chance(10):
            name = self.random.choice(sorted(model.kept))
            return Put(name, self.given(name, (*model.kept[name], 0)[0], ["array"]), "kept")
        kind = self.random.randrange(100)
        if kind < 52:
            return self.call(model)
        if kind < 62:
            return self.steps(model)
        if kind < 64:
            return self.as_theano(model)
        if kind < 70:
            name = self.random.choice(self.variables(SHARED.keys() - RANDOM.keys()))
            rows = self.rows()
            if name in STATES and self.chance(60):  # as many rows as another state, because a function may need both
                rows = self.rows_of_state(model, self.random.choice(list(STATES)))
            return Put(name, self.given(name, rows, ["array"]), self.random.choice(WAYS))
        if kind < 71:
            return Distribute()
        if kind < 73:
            if model.saved and self.chance(60):
                return Load(self.random.randrange(len(model.saved)))
            among = self.variables(SHARED)
            return Save(self.random.sample(among, min(len(among), self.random.randrange(1, 5))))
        if model.started and self.chance(30):
            return Wait(self.random.randrange(len(model.started)))
        return self.collective(model)

    def variables(self, among):
        """Return the names of these shared variables, or only of those that the last function uses."""
        last = BY_NAME[self._last].shareds if self._last is not None and self.chance(60) else ()
        return [name for name in last if name in among] or [name for name in SHARED if name in among]

    @staticmethod
    def rows_of_state(model, name):
        return model.values[name][0].shape[axis_of_rows(name)]

    def rows(self):
        """Return a number of rows: few, or enough for indices to be sent through shared memory."""
        return self.random.choice([1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 17, 0, 300])

    # -- calls -------------------------------------------------------------------------------------------------------

    def call(self, model):
        again = self._last is not None and self.chance(30)  # programs often call a function repeatedly
        self._last = self._last if again else self.random.choice(self.names)
        recipe, options = BY_NAME[self._last], {}
        rows, wanted = self.rows(), self.wanted_rows(model, recipe)
        scattered = [name for name in recipe.scattered.split() if name in INPUTS]
        if scattered and self.chance(50):
            options["batch"] = self.batch(rows, wanted)
        elif wanted is not None:
            rows = wanted
        given = {}
        for name in recipe.inputs:
            n = rows
            forms = ["array", "data", "array", "data", "view", "list"]
            if name in scattered[1:] and "batch" in options:
                n += self.random.choice([0, 0, 0, 2])
                forms += ["minibatch"] * 4
            elif name in scattered[1:] and self.chance(12):
                n += 1  # this is refused
            given[name] = self.given(name, n, forms)
            if given[name].form == "minibatch" and not n:
                given[name].form = "array"
        n_rows = len(selected(options.get("batch"), rows)) if scattered else wanted
        if recipe.sliceable and (self.chance(60) or recipe.scattered):
            options["batch_s"] = self.batch_s(model, recipe, n_rows)
        if self.chance(3 if recipe.states else 35 if scattered or recipe.sliceable else 3):
            most = n_rows or min(len(model.values[name][0]) for name in (recipe.sliceable or "table").split()) * model.n
            options["num_slices"] = self.random.choice([1, 2, 2, 3, 3, 4, 5, max(1, most), most + 1])
        if recipe.outputs and self.chance(25):
            options["output_subset"] = self.random.sample(recipe.keys, self.random.randrange(len(recipe.keys) + 1))
        return Call(recipe.name, given, {key: value for key, value in options.items() if value is not None})

    def steps(self, model):
        """Return a step with several calls of the same function, with the same options, in one command."""
        call = self.call(model)
        recipe, options, k = BY_NAME[call.recipe], call.options, self.random.choice([1, 2, 2, 3, 4])
        for value in call.given.values():
            value.form = "data" if value.form == "minibatch" else value.form
        rows = [
            len(value.array)
            for name, value in call.given.items()
            if name in recipe.scattered.split() and name in INPUTS
        ]
        batches = [options.pop("batch")] if "batch" in options else []
        batches_s = [options.pop("batch_s")] if "batch_s" in options else []
        for _ in range(k - 1):
            if batches:
                batches.append(self.batch(min(rows), self.wanted_rows(model, recipe)))
            if batches_s:
                n_rows = len(selected(batches[-1], min(rows))) if batches else min(rows) if rows else recipe.rows
                batches_s.append(self.batch_s(model, recipe, n_rows))
        if batches and all(isinstance(batch, int) for batch in batches):
            batches[0] = slice(batches[0])  # a list of integers alone would be one batch
        for name, value in (("batches", batches), ("batches_s", batches_s)):
            if value:
                options[name] = value
        return Steps(call.recipe, call.given, options if batches or batches_s else dict(options, n_steps=k))

    def as_theano(self, model):
        recipe = BY_NAME[self.random.choice(self.names)]
        wanted = self.wanted_rows(model, recipe)
        rows = self.rows() if wanted is None else wanted
        return Call(recipe.name, {name: self.given(name, rows) for name in recipe.inputs}, how="as_theano")

    def wanted_rows(self, model, recipe):
        """Return the number of rows that a call needs to be accepted; None for any number, which may be refused."""
        numbers = [] if recipe.rows is None else [recipe.rows]
        numbers += [self.rows_of_state(model, name) for name in recipe.states.split()]
        return self.random.choice(numbers) if numbers and self.chance(80) else None

    def batch(self, length, wanted=None):
        """Return a ``batch`` in any form that fits; if ``wanted`` is a number, with this number of rows."""
        if wanted is not None and length:
            return slice(wanted) if wanted <= length and self.chance(30) else self.indices(length, wanted)
        form = self.random.randrange(6)
        if form == 0:
            return self.random.randrange(length + 1)
        if form < 3:
            return self.some_slice(length)
        return self.indices(length, self.random.choice([0, 1, 2, 3, 4, 5, 6, 7, 300] if length else [0]))

    def some_slice(self, length):
        ends = [None] + list(range(-length - 1, length + 2))
        return slice(self.random.choice(ends), self.random.choice(ends), self.random.choice([None, None, 1, 2, -1, -2]))

    def indices(self, length, n):
        """Return n indices as a list, or sometimes as a tuple, array or range."""
        low = -length if self.chance(30) else 0
        some = np.random.RandomState(self.random.randrange(1 << 16)).randint(low, length, n).tolist() if n else []
        form = self.random.randrange(6)
        if form == 0:
            return tuple(some)
        if form == 1:
            return np.array(some, "int32" if low or form else "uint8")
        if form == 2 and n <= length:
            return range(length - n, length)
        return some

    def batch_s(self, model, recipe, n_rows):
        lengths = [min(len(model.values[name][rank]) for name in recipe.sliceable.split()) for rank in range(model.n)]
        if n_rows is not None and self.chance(70):  # as many rows as the inputs have
            counts = [len(share) for share in shares(n_rows, model.n, model.root)]
            if all(length or not count for length, count in zip(lengths, counts)):
                return [np.array(self.list_of(length, count), int) for length, count in zip(lengths, counts)]
        form = self.random.randrange(4)
        if form == 0:
            return self.some_slice(max(lengths))
        if form == 1:
            return self.list_of(min(lengths), self.random.choice([1, 2, 5]))
        if form == 2:
            return [self.some_slice(length) for length in lengths]
        return [
            self.some_slice(length)
            if self.chance(30)
            else self.list_of(length, self.random.choice([0, 1, 2, 3, 7]))
            if self.chance(50)
            else np.array(self.list_of(length, self.random.choice([0, 3, 300])), int)
            for length in lengths
        ]

    def weights(self, n):
        found = [self.random.choice([0, 0, 1, 2, 3.5]) for _ in range(n)]
        found[self.random.randrange(n)] = 1
        return found

    def list_of(self, length, n):
        return np.random.RandomState(self.random.randrange(1 << 16)).randint(0, length, n).tolist() if length else []

    # -- collectives -------------------------------------------------------------------------------------------------

    def collective(self, model):
        name = self.random.choice(
            [
                "broadcast",
                "broadcast",
                "scatter",
                "scatter",
                "gather",
                "all_gather",
                "reduce",
                *["all_reduce"] * 6,
                "set_value",
                "set_value",
                "get_value",
                "get_shapes",
                "get_lengths",
                "in_sync",
            ]
        )
        alone = self.chance(50)
        if name in ("scatter", "all_gather") or name == "set_value" and self.chance(30):
            among = list(DATA)
        elif name in ("reduce", "all_reduce"):
            floats = [variable for variable in FIXED if FIXED[variable][0].startswith("float")]
            among = floats if self.chance(70) else list(FIXED)
        else:
            among = list(FIXED) + list(DATA)
        names = self.random.sample(among, 1 if alone else self.random.randrange(1, min(5, len(among) + 1)))
        if name not in ("reduce", "all_reduce") and self.chance(4):
            names[-1] = self.random.choice(list(STATES))  # this is refused
        arguments, options = [names], {}
        if name in ("set_value", "get_value"):
            arguments.insert(0, self.random.randrange(model.n))
        if name in ("scatter", "set_value") or name == "broadcast" and self.chance(50):
            rows, forms = self.rows(), ["array", "data", "view", "list"]
            if name != "broadcast" and self.chance(30) and all(variable in DATA for variable in names):
                options["batch"] = self.batch(rows)
            arguments.append([self.given(variable, rows, forms) for variable in names])
            if rows and "batch" in options:
                for value in arguments[-1][1:]:
                    value.form = self.random.choice([value.form, "minibatch"])
        if name == "gather":
            options["nd_up"] = self.random.randrange(2)
        if name in ("reduce", "all_reduce"):
            integers = any(np.dtype(FIXED[variable][0]).kind != "f" for variable in names)
            options["op"] = self.random.choice(
                ([] if integers else 2 * ["avg", "c_avg"]) + ["sum", "prod", "min", "c_max"]
            )
        if name == "reduce":
            options["in_place"] = self.chance(50)
        if name == "all_reduce" and options["op"] in ("avg", "c_avg") and self.chance(85):
            called = [recipe for recipe, rows in model.last_rows.items() if any(rows)]
            if called and self.chance(30):
                options["weights"] = self.random.choice(called)
            else:
                options["weights"] = self.weights(model.n)
            form = self.random.randrange(5)
            if form < 2:
                ranks = self.random.sample(range(model.n), model.n)
                cut = self.random.randrange(2)  # so that a group has several ranks
                options["groups"] = [group for group in (ranks[:cut], ranks[cut:]) if group]
            elif form < 4:
                rows = [self.weights(model.n) for _ in range(2)]
                rows.append([1.5 * weight for weight in rows[0]])  # equivalent to the first row
                options["weights"] = [self.random.choice(rows) for _ in range(model.n)]
        if name == "all_reduce" and self.chance(30):
            types = {}
            for variable in FIXED:
                types.setdefault(FIXED[variable], []).append(variable)
            others = {
                variable: self.random.sample(types[FIXED[variable]], len(types[FIXED[variable]])) for variable in names
            }
            options["into"] = [others[variable].pop() for variable in names]
            if len(set(options["into"])) < len(names):
                del options["into"]
        if name == "all_reduce" and self.chance(20):
            options["wait"] = False
        return Collective(name, arguments, options, alone)
