"""Random graphs as text: a readable program with its data, which can be run.

A `Graph` has inputs and lines. A line names an expression of other names and of functions in ``tests/library.py``.
"""

import dataclasses
import re
from dataclasses import dataclass, field

import numpy as np

#: Names in an expression.
NAME = re.compile(r"\b[vxpw]\d+\b")


@dataclass(frozen=True)
class Input:
    """An input or a shared variable.

    Parameters
    ----------
    name : str
        Begins with x (has rows), p (the same on all ranks) or w (a shared variable).
    dtype : str
    ndim : int
    axis : int, optional
        The axis of the rows.
    style : str
        How its values are drawn.
    """

    name: str
    dtype: str
    ndim: int
    axis: object = None
    style: str = "unit"

    @property
    def is_shared(self):
        return self.name.startswith("w")


@dataclass(frozen=True)
class Line:
    """A line ``name = text`` of a program."""

    name: str
    text: str

    @property
    def names(self):
        """The names in the expression, in order of appearance."""
        return list(dict.fromkeys(NAME.findall(self.text)))

    def renamed(self, names):
        """Return the line with other names in its expression."""
        return dataclasses.replace(self, text=NAME.sub(lambda found: names.get(found[0], found[0]), self.text))


@dataclass(frozen=True)
class Step:
    """A step of the program: a call, a series of calls, or new values of shared variables.

    Parameters
    ----------
    how : {"call", "steps", "set_value"}
    data : dict
        Arrays by the names of inputs or shared variables.
    options : dict
        The options of the call.
    """

    how: str
    data: dict
    options: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Graph:
    """A program with one function.

    Parameters
    ----------
    inputs : tuple of Input
    lines : tuple of Line
    outputs : tuple of str
    updates : tuple of (str, str)
        Names of a shared variable and of its new value.
    initial : dict
        The initial values of shared variables.
    steps : tuple of Step
    n, root : int
        The number of ranks, and the master's rank.
    exact : bool
    rows : int, optional
        The number of rows, if the program has it as a literal.
    optimizer : {None, "fast_compile", "fast_run"}
    """

    inputs: tuple
    lines: tuple
    outputs: tuple
    updates: tuple
    initial: dict
    steps: tuple
    n: int = 2
    root: int = 0
    exact: bool = True
    rows: object = None
    optimizer: object = "fast_compile"

    def pruned(self):
        """Return the graph without unused lines, inputs and values."""
        used = {*self.outputs, *(name for pair in self.updates for name in pair)}
        lines = []
        for line in reversed(self.lines):
            if line.name in used:
                lines.insert(0, line)
                used.update(line.names)
        inputs = tuple(one for one in self.inputs if one.name in used)
        if not any(one.axis is not None for one in inputs):  # at least one input must be divided
            inputs = tuple(one for one in self.inputs if one.axis is not None)[:1] + inputs
        names = {one.name for one in inputs}
        steps = []
        for step in self.steps:
            data = {name: value for name, value in step.data.items() if name in names}
            if data or step.how != "set_value":
                steps.append(dataclasses.replace(step, data=data))
        initial = {name: value for name, value in self.initial.items() if name in names}
        return dataclasses.replace(self, inputs=inputs, lines=tuple(lines), steps=tuple(steps), initial=initial)

    # -- as text -------------------------------------------------------------------------------------------------------

    def cone(self, name):
        """Return the value of a name as a single expression of inputs."""
        by_name = {line.name: line for line in self.lines}

        def inlined(match):
            line = by_name.get(match[0])
            return match[0] if line is None else "(" + NAME.sub(inlined, line.text) + ")"

        return NAME.sub(inlined, name)

    def definitions(self):
        """Return the lines that create the variables."""
        found = []
        for one in self.inputs:
            if one.is_shared:
                found.append(f"{one.name} = L.shared({array_text(self.initial[one.name])}, {one.name!r})")
            else:
                found.append(f"{one.name} = L.variable({one.dtype!r}, {one.ndim}, {one.name!r})")
        return found + [f"{line.name} = {line.text}" for line in self.lines]

    @property
    def arguments(self):
        """The inputs of the function in order: first those that have rows."""
        return sorted((one for one in self.inputs if not one.is_shared), key=lambda one: one.axis is None)

    def text(self):
        """Return the whole program; it prints our values and the serial program's."""
        names = [one.name for one in self.arguments]
        divided = ", ".join(
            f"synk.sharded(ours.{one.name}, axis={one.axis})" if one.axis else f"ours.{one.name}"
            for one in self.arguments
            if one.axis is not None
        )
        whole = ", ".join(f"ours.{one.name}" for one in self.arguments if one.axis is None)
        options = [f"exact={self.exact}"] + [f"rows={self.rows}"] * (self.rows is not None)

        def made(which):
            outputs = ", ".join(f"{which}.{name}" for name in self.outputs)
            updates = ", ".join(f"({which}.{w}, {which}.{v})" for w, v in self.updates)
            return f"[{outputs}]", f"updates=[{updates}], mode=mode, on_unused_input='ignore'"

        outputs, others = made("ours")
        lines = [
            "import sys; sys.path[:0] = ['tests', 'tests/programs']  # in the repository's folder",
            "import numpy as np, synkhronos as synk",
            "from graph_words import *",
            "",
            "def made():",
            *["    " + line for line in self.definitions()],
            "    return SimpleNamespace(**locals())",
            "",
            "with L.compiled_quickly():",
            "    ours, serial = made(), made()",
            f"mode = mode_of({self.optimizer!r})",
            f"synk.fork({self.n}, use_gpu=False, master_rank={self.root})",
            f"f = synk.function([{divided}], {outputs}, [{whole}], {others}, {', '.join(options)})",
        ]
        outputs, others = made("serial")
        inputs = ", ".join(f"serial.{name}" for name in names)
        lines.append(f"g = L.function([{inputs}], {outputs}, {others})")
        for step in self.steps:
            if step.how == "set_value":
                for name, value in step.data.items():
                    lines += [f"{which}.{name}.set_value({array_text(value)})" for which in ("ours", "serial")]
                continue
            given = ", ".join(array_text(step.data[name]) for name in names)
            more = "".join(f", {name}={value!r}" for name, value in step.options.items())
            lines.append(f"print('ours  ', f{'.steps' * (step.how == 'steps')}({given}{more}))")
            for selected in self.selections(step):
                given = ", ".join(array_text(selected[name]) for name in names)
                lines.append(f"print('serial', g({given}))")
        for w, _ in self.updates:
            lines.append(f"print('{w}', list(synk.gather(ours.{w})), 'serial', serial.{w}.get_value())")
        return "\n".join([*lines, "synk.close()"]) + "\n"

    def selections(self, step):
        """Return the inputs of each serial call in a step."""
        if step.how == "set_value":
            return []
        batches = step.options.get("batches") or [step.options.get("batch")] * step.options.get("n_steps", 1)
        return [self._selected(step.data, batch) for batch in batches]

    def _selected(self, data, batch):
        axes = {one.name: one.axis for one in self.inputs}
        if isinstance(batch, int):
            batch = slice(batch)
        found = {}
        for name, value in data.items():
            if batch is not None and axes[name] is not None:
                value = value[(slice(None),) * axes[name] + (batch,)]
            found[name] = value
        return found


def array_text(value):
    """Return a short expression that creates this array."""
    value = np.asarray(value)
    if value.size == 0:
        return f"np.zeros({value.shape}, {str(value.dtype)!r})"
    numbers = repr(value.tolist()).replace("nan", "np.nan").replace("inf", "np.inf")
    return f"np.array({numbers}, {str(value.dtype)!r})"
