"""Random serial programs as Python text, grown from a table of phrases.

A phrase describes its arguments, its result, and the expression that a user would write::

    n d; d e -> n e: pt.tanh(pt.dot({0}, {1}))

``n`` is the number of rows, every other letter stands for one length, and a number for itself. A prefix names the dtype
of an argument: ``i:`` integers, ``b:`` bools, ``z:`` complex numbers, ``l:`` labels below the first length that is not
``n``, and ``@`` is a variable to differentiate by. Without a prefix, an argument is a float. Further marks:

======================= ================================================================================================
``<<tanh|exp>>``        one of these texts; ``SAFE`` and ``ELEMENTWISE`` are one of the names in these lists
``{c}``, ``{N}``        a random constant; the number of rows as a literal (only in programs with a fixed number)
lines below, indented   ``a = ...`` is an intermediate value, which later lines name ``{a}``; the last line is the result
======================= ================================================================================================
"""

import random
import re
from typing import NamedTuple, Optional, Tuple

import numpy as np

#: Expressions for random arrays of shape ``s``, by the prefix of an argument. ``r`` is a `numpy.random.RandomState`.
DATA = {
    "f": [
        *["r.standard_normal(s)"] * 8,
        *["r.standard_normal(s[::-1]).T", "r.standard_normal(s) * 3 + 20", "r.standard_normal(s).astype('float32')"],
        *["r.randint(-4, 5, s) / 2.", "r.uniform(size=s)", "np.flip(r.standard_normal(s))"],
        *["np.where(r.uniform(size=s) < .1, np.nan, r.standard_normal(s))", "r.standard_normal(s).astype('float16')"],
        "np.where(r.uniform(size=s) < .1, r.choice([-np.inf, np.inf], s), r.standard_normal(s))",
    ],
    "i": [
        *["r.randint(-5, 9, s)", "r.randint(0, 4, s)", "r.randint(0, 4, s).astype('int32')"],
        *["r.randint(-128, 128, s).astype('int8')", "r.randint(0, 256, s).astype('uint8')"],
        "r.randint(-20000, 20000, s).astype('int16')",
    ],
    "b": ["r.uniform(size=s) < .6", "r.uniform(size=s) < .1"],
    "z": ["r.standard_normal(s) + 1j * r.standard_normal(s)"],
}

#: Numbers of rows of calls; many equal the lengths of other axes.
ROWS = [0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 7, 9, 12]

#: Number of consecutive programs with the same ranks.
PROGRAMS_PER_SESSION = 25

KINDS = {"f": "f", "i": "iu", "b": "b", "z": "c"}


class Unsuitable(Exception):
    """A phrase does not fit the values of the program."""


def parsed(table, **lists):
    """Return the phrases of a table as tuples of arguments, result and expression."""
    found = []
    for line in filter(str.strip, table.split("\n")):
        if not line.startswith("    "):
            arguments, _, rest = line.partition("->")
            result, _, line = rest.partition(":")
            found.append([arguments.strip(), result.strip(), ""])
        for name, words in lists.items():
            line = line.replace(name, f"<<{'|'.join(words.split())}>>")
        found[-1][2] += line.strip() + "\n"
    return [tuple(phrase) for phrase in found]


class Leaf(NamedTuple):
    """An input or a shared variable: its name, lengths, data, and role."""

    name: str
    dims: tuple
    data: str
    role: str  # "rows", "all" (an input that goes to all ranks), "shared", or "given"
    static: bool = False  # whether the variable's type contains the lengths

    def value(self, rows, seed):
        """Return the values of this leaf for a number of rows."""
        r = np.random.RandomState((seed * 1000003 + sum(map(ord, self.name))) % 2**32)
        shape = tuple(rows if d == "n" else d for d in self.dims)
        return np.asarray(eval(self.data, {"r": r, "s": shape, "np": np}))

    @property
    def axis(self):
        return self.dims.index("n")

    def text(self, library):
        """Return the statement that creates the variable."""
        dtype = str(self.value(2, 0).dtype)
        if self.role == "shared":
            return f"{self.name} = shared({literal(self.value(0, 0))}, {self.name!r})"
        lengths = tuple(d if self.static and d != "n" else None for d in self.dims)
        return f"{self.name} = {library.variable(self.name, dtype, lengths)}"


def literal(value):
    """Return an array as Python text."""
    return f"np.array({value.tolist()!r}, {str(value.dtype)!r})"


class Value(NamedTuple):
    """A value of the program that phrases may use."""

    name: str
    dims: tuple
    kind: str  # "f", "i", "b", "z", or "l3" for labels below 3


class Call(NamedTuple):
    """A call: its number of rows, the seed of its data, and its form."""

    rows: int
    seed: int
    form: str = "plain"  # "plain", "slices", "batch" or "steps"
    choice: object = None  # number of slices, selection of rows, or selections
    changes: bool = False  # whether the program sets new values of all shared variables before


class Program(NamedTuple):
    """A serial program, with the calls to compare."""

    leaves: Tuple[Leaf, ...]
    lines: Tuple[Tuple[str, str], ...]
    outputs: Tuple[str, ...]
    updates: Tuple[Tuple[str, str], ...]
    calls: Tuple[Call, ...]
    ranks: int
    root: int
    rows: Optional[int] = None
    givens: Tuple[Tuple[str, str], ...] = ()

    def body(self, library):
        """Return the statements that create all variables."""
        return [leaf.text(library) for leaf in self.leaves] + [f"{name} = {text}" for name, text in self.lines]

    def needed(self):
        """Return the program without leaves and lines that no target needs."""
        found = {name for pair in (*self.updates, *self.givens) for name in pair} | set(self.outputs)
        lines = []
        for name, text in reversed(self.lines):
            if name in found:
                lines.append((name, text))
                found.update(re.findall(r"\b[a-z]+\d+\b", text))
        leaves = tuple(leaf for leaf in self.leaves if leaf.name in found)
        return self._replace(lines=tuple(reversed(lines)), leaves=leaves)

    def text(self, library, wrong=None):
        """Return a program that builds both functions and prints the results of the wrong call, or of each call."""
        names = {role: [x for x in self.leaves if x.role == role] for role in ("rows", "all", "shared")}
        rows = [x.name if x.axis == 0 else f"synk.sharded({x.name}, axis={x.axis})" for x in names["rows"]]
        everywhere = ", ".join(x.name for x in names["all"])
        updates = ", ".join(f"({a}, {b})" for a, b in self.updates)
        givens = f", givens=[{', '.join(f'({a}, {b})' for a, b in self.givens)}]" if self.givens else ""
        fixed = f", rows={self.rows}" if self.rows else ""
        common = f"[{', '.join(self.outputs)}], updates=[{updates}]{givens}"
        lines = [
            library.HEADER,
            *self.body(library),
            f"serial = function([{', '.join(x.name for x in (*names['rows'], *names['all']))}], {common})",
            f"synk.fork({self.ranks}, master_rank={self.root})",
            f"exact = synk.function([{', '.join(rows)}], bcast_inputs=[{everywhere}], {common}, exact=True{fixed})",
        ]
        for call in self.calls if wrong not in self.calls else [wrong]:
            arguments = ", ".join(literal(x.value(call.rows, call.seed)) for x in (*names["rows"], *names["all"]))
            lines += [f"# {call}", f"print(serial({arguments}))", f"print(exact({arguments}))"]
        return "\n".join(lines)


class Author:
    """Grow a random program from phrases.

    Parameters
    ----------
    library
        Module with the vocabulary: PHRASES, ENDINGS, NAMES, HEADER, and `variable`.
    seed : str
    number : int
        Together, they select the program. Consecutive programs have the same ranks and root.
    """

    def __init__(self, library, seed, number):
        self.library, self.rng = library, random.Random(f"{seed} {number}")
        rng, rng_of_world = self.rng, random.Random(f"{seed} world {number // PROGRAMS_PER_SESSION}")
        ranks = rng_of_world.choice([1, 2, 2, 3, 3, 4])
        self.world = ranks, rng_of_world.choice([0, rng_of_world.randrange(ranks)])
        self.sizes = rng.sample([1, 2, 3, 4, 5], 3)
        self.rows = rng.choice([2, 3, 4, 5, 6, 7]) if rng.random() < 0.12 else None
        self.leaves, self.lines, self.values = [], [], []
        self.names = dict(library.NAMES)

    def program(self):
        """Return a program; None if no phrase fits."""
        rng = self.rng
        for _ in range(rng.randint(1, 9)):
            self.extend(self.library.PHRASES)
        for _ in range(rng.choice([0, 1, 1, 2, 3])):
            self.extend(self.library.ENDINGS)
        made = [value for value in self.values if value.name.startswith("v")]
        if not made:
            return None
        last = made[-5:]
        outputs = tuple(value.name for value in rng.sample(last, min(len(last), rng.randint(1, 3))))
        updates = tuple(self.updates(made))
        calls = tuple(self.calls())
        givens = self.givens()
        lines, leaves = tuple(self.lines), tuple(self.leaves)
        program = Program(leaves, lines, outputs, updates, calls, *self.world, self.rows, givens)
        return program.needed()

    def givens(self):
        """Replace an input that goes to all ranks by a new shared variable, in some programs."""
        inputs = [i for i, leaf in enumerate(self.leaves) if leaf.role == "all"]
        if not inputs or self.rng.random() > 0.15:
            return ()
        i = self.rng.choice(inputs)
        other = self.leaf("shared", self.leaves[i].dims, self.leaves[i].data)
        line = f"cast({other.name} * 2 + {other.name}, {self.dtype(other.name)!r})"
        if self.names[self.leaves[i].name].type != eval(line, self.names).type:
            return ()
        self.lines.append(("g0", line))
        self.leaves[i] = self.leaves[i]._replace(role="given")
        return ((self.leaves[i].name, "g0"),)

    def updates(self, made):
        rng = self.rng
        for leaf in [leaf for leaf in self.leaves if leaf.role == "shared"]:
            fits = [v for v in made if v.dims == leaf.dims and "n" not in v.dims]
            if fits and rng.random() < 0.6:
                value = rng.choice(fits)
                line = rng.choice(
                    [f"{leaf.name} - 0.1 * {value.name}", value.name, f"0.9 * {leaf.name} + {value.name} * 0.1"]
                )
                try:
                    name = self.bind(f"cast({line}, {self.dtype(leaf.name)!r})", leaf.dims).name
                except Unsuitable:
                    continue
                yield leaf.name, name

    def calls(self):
        rng = self.rng
        for number in range(rng.randint(2, 4)):
            rows, seed = self.rows or rng.choice(ROWS), rng.randrange(10**6)
            form, choice = rng.choice(["plain"] * 5 + ["slices", "batch", "steps"]), None
            if self.rows or not any(leaf.role == "rows" for leaf in self.leaves):
                form = "plain"
            if form == "slices":
                choice = rng.choice([2, 3])
            elif form == "batch":
                rows = max(rows, 2)
                chosen = [rng.randrange(rows) for _ in range(rng.randint(1, 6))]
                choice = rng.choice([chosen, slice(1, None), slice(None, None, -2), max(rows - 1, 1)])
            elif form == "steps":
                rows = max(rows, 2)
                choice = [[rng.randrange(rows) for _ in range(rng.choice([1, 2, 3, 5]))] for _ in range(3)]
            yield Call(rows, seed, form, choice, number > 0 and rng.random() < 0.3)

    # -- one phrase --------------------------------------------------------------------------------------------------

    def extend(self, phrases):
        """Add one random phrase that fits."""
        for _ in range(8):
            arguments, result, text = self.rng.choice(phrases)
            if "{N}" in text and self.rows is None:
                continue
            before = len(self.lines), len(self.leaves), len(self.values)
            try:
                self.apply(arguments, result, text)
                return
            except Unsuitable:
                del self.lines[before[0] :], self.leaves[before[1] :], self.values[before[2] :]

    def apply(self, arguments, result, text):
        lengths, given = {}, []
        for pattern in arguments.split(";"):
            given.append(self.argument(pattern.strip(), lengths, given))
        text = re.sub(
            r"<<(.*?)>>", lambda found: self.rng.choice(found.group(1).split("|")).strip(), text, flags=re.DOTALL
        )
        names = {"N": self.rows, "c": self.rng.choice(["0.5", "-1.5", "2.", "0.1", "3"])}
        names.update(lengths)
        names.update({str(i): value.name for i, value in enumerate(given)})
        *lines, last = text.strip().split("\n")
        for line in lines:
            name, _, expression = (part.strip() for part in line.partition("="))
            names[name] = self.bind(self.filled(expression, names), None).name
        dims = given[1].dims if result == "@" else tuple(self.length(d, lengths) for d in result.split())
        self.values.append(self.bind(self.filled(last, names), dims))

    @staticmethod
    def filled(text, names):
        return re.sub(r"\{(\w+)\}", lambda found: str(names[found.group(1)]), text)

    def length(self, letter, lengths):
        if letter == "n" or letter.isdigit():
            return letter if letter == "n" else int(letter)
        return lengths.setdefault(letter, self.rng.choice(self.sizes))

    def argument(self, pattern, lengths, given):
        """Return a value for an argument: often one that the program has, otherwise a new input or shared variable."""
        rng = self.rng
        if pattern == "@":
            leaves = [leaf for leaf in self.leaves if self.dtype(leaf.name).startswith("float")]
            if not leaves:
                raise Unsuitable
            leaf = rng.choice(leaves)
            return Value(leaf.name, leaf.dims, "f")
        kind, _, letters = pattern.rpartition(":")
        letters = letters.split()
        kind = f"l{next((d for value in given for d in value.dims if d != 'n'), 3)}" if kind == "l" else kind or "f"
        taken = given if rng.random() < 0.7 else []
        found = [value for value in self.values if value.kind == kind and self.fits(value.dims, letters, lengths)]
        found = [value for value in found if value not in taken]
        if found and rng.random() < 0.85:
            value = rng.choice(found[-6:])
            lengths.update((letter, d) for letter, d in zip(letters, value.dims) if letter.isalpha() and letter != "n")
            return value
        dims = tuple(self.length(letter, lengths) for letter in letters)
        role = "rows" if "n" in dims else rng.choice(["shared", "shared", "all"])
        if kind.startswith("l"):
            data = f"r.randint(0, {kind[1:]}, s)" + rng.choice(["", ".astype('int32')"])
        else:
            data = rng.choice(DATA[kind]) if rng.random() < 0.5 else DATA[kind][0]
        leaf = self.leaf(role, dims, data)
        return Value(leaf.name, dims, kind)

    @staticmethod
    def fits(dims, letters, lengths):
        if len(dims) != len(letters):
            return False
        lengths = dict(lengths)
        for letter, d in zip(letters, dims):
            if letter == "n" or letter.isdigit():
                if str(d) != letter:
                    return False
            elif d == "n" or lengths.setdefault(letter, d) != d:
                return False
        return True

    def leaf(self, role, dims, data):
        """Add an input or a shared variable."""
        prefix = {"rows": "x", "all": "a", "shared": "w"}[role]
        leaf = Leaf(f"{prefix}{len(self.leaves)}", dims, data, role, self.rng.random() < 0.5)
        exec(leaf.text(self.library), self.names, self.names)
        self.leaves.append(leaf)
        kind = "l" + re.search(r", (\d+), s", data).group(1) if data.startswith("r.randint(0, ") else None
        kind = kind or next(k for k, letters in KINDS.items() if leaf.value(2, 0).dtype.kind in letters)
        self.values.append(Value(leaf.name, dims, kind))
        return leaf

    def bind(self, text, dims):
        """Add a line that names the value of an expression."""
        name = f"v{len(self.lines)}"
        try:
            exec(f"{name} = {text}", self.names, self.names)
            variable = self.names[name]
            if dims is not None and variable.type.ndim != len(dims):
                raise ValueError(f"{text}: {variable.type} is not {dims}")
            kind = next((k for k, letters in KINDS.items() if np.dtype(variable.type.dtype).kind in letters), "")
        except Exception as error:
            self.library.FAILED[f"{type(error).__name__}: {str(error)[:60]}"] = text
            raise Unsuitable from error
        self.lines.append((name, text))
        return Value(name, dims, kind)

    def dtype(self, name):
        return str(self.names[name].type.dtype)
