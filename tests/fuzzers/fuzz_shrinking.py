"""Reduce a program with a wrong result to a small one with a wrong result."""

import re

from fuzz_check import Tally, Wrong, check


def candidates(program):
    """Return smaller programs."""
    for target in (*program.outputs, *program.updates):
        if len(program.outputs) + len(program.updates) > 1:
            outputs = tuple(name for name in program.outputs if name != target)
            yield program._replace(outputs=outputs, updates=tuple(pair for pair in program.updates if pair != target))
    for call in program.calls:
        if len(program.calls) > 1:
            yield program._replace(calls=tuple(other for other in program.calls if other != call))
        elif call.form != "plain" or call.changes:
            yield program._replace(calls=(call._replace(form="plain", choice=None, changes=False),))
        elif call.rows > 2 and program.rows is None:
            yield program._replace(calls=(call._replace(rows=call.rows - 1),))
    if program.ranks > 2 or program.root:
        yield program._replace(ranks=2, root=0)
    for i, (name, text) in enumerate(program.lines):
        for other in [leaf.name for leaf in program.leaves] + [line[0] for line in program.lines[:i]]:
            if text != other:
                lines = (*program.lines[:i], (name, other), *program.lines[i + 1 :])
                yield program._replace(lines=lines)
    for i, leaf in enumerate(program.leaves):
        if leaf.data not in ("r.standard_normal(s)", "r.randint(0, 4, s)") and not leaf.data.startswith("r.uniform"):
            leaves = (*program.leaves[:i], leaf._replace(data="r.standard_normal(s)"), *program.leaves[i + 1 :])
            yield program._replace(leaves=leaves)


def inlined(program):
    """Return the program without lines that only repeat a name."""
    names = {}
    lines = []
    for name, text in program.lines:
        if text.isidentifier():
            names[name] = names.get(text, text)
        else:
            lines.append((name, replaced(text, names)))
    return program._replace(
        lines=tuple(lines),
        outputs=tuple(names.get(name, name) for name in program.outputs),
        updates=tuple((a, names.get(b, b)) for a, b in program.updates),
        givens=tuple((a, names.get(b, b)) for a, b in program.givens),
    ).needed()


def replaced(text, names):
    for old, new in names.items():
        text = re.sub(rf"\b{old}\b", new, text)
    return text


def smallest(program, wrong, library, launcher="threads", attempts=300):
    """Return a small program with a wrong result, and this result."""
    found = True
    while found and attempts > 0:
        found = False
        for candidate in candidates(program):
            attempts -= 1
            if attempts < 0:
                break
            candidate = inlined(candidate)
            try:
                check(candidate, library, Tally(), launcher)
            except Wrong as other:
                program, wrong, found = candidate, other, True
                break
            except Exception:
                continue  # the smaller program is invalid
    return program, wrong
