"""Plain words: phrases that native readers stumble over stay out of code, messages and pages.

    python tests/project/test_words.py PATH ...     # prints where they are

In Python files, comments and strings are searched, including docstrings and messages, but not names or code between
backticks. Another test checks that class names are unique.
"""

import ast
import io
import re
import sys
import tokenize
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

#: Phrases, and replacements.
PHRASES = {
    r"\btell(s|ing)?\b|\btold\b": "send, warn, report, record",
    r"\b(of|for|in|to|from|by|on|with|at|into|after|before) (which|whose)\b": "two sentences",
    r"\bgiven up\b": "aborted, abandoned",
    r"\bso many\b": "the number",
    r"\blikewise\b": "repeat it",
    r"\bnobody\b": "name them",
    r"\bas above\b": "name the parameter",
    r"\bshall\b": "must",
    r"\blet(s|ting)? go\b": "release",
    r"\b(find|finds|finding|found) out\b": "determine",
    r"\bno more\b(?! than)": "no longer",
}

#: The first line of a docstring is a tooltip: it names its subject.
HEADLESS = re.compile(r"(What|Who|Whom|Those|That|Where|Which)\b")

#: Maximum number of lines of docstrings and comments in the package. Later changes lower it.
MOST_LINES = 9790

READ = ["synkhronos", "demos", "docs", "README.md"]

#: The corresponding operations of all libraries have the same names.
OF_LIBRARIES = ("engines/theano/", "engines/pytensor/", "testing/numpy_engine/")


def files_of(name):
    path = ROOT / name
    if path.is_file():
        return [path]
    return [one for one in sorted(path.rglob("*")) if one.suffix in (".py", ".c", ".rst", ".md") and one.is_file()]


def found_in(text, is_python):
    """Return lines, phrases and advice."""
    if not is_python:
        return list(_in_text(1, text))
    found = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING) or tokenize.tok_name[token.type].startswith("FSTRING"):
            found += _in_text(token.start[0], token.string)
    for node, docstring in docstrings(text):
        if HEADLESS.match(docstring):
            found.append((getattr(node, "lineno", 1), docstring.split("\n")[0], "name the subject"))
    return found


def _in_text(line, text):
    text = re.sub(r"``[^`]*``|`[^`]*`", lambda code: " " * len(code[0]), text)
    text = re.sub(r"\n[ \t]*(#:?)?", "\n", text)
    for pattern, advice in PHRASES.items():
        for match in re.finditer(pattern.replace(" ", r"\s+"), text, re.IGNORECASE):
            yield line + text.count("\n", 0, match.start()), " ".join(match[0].split()), advice


def docstrings(text):
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)]
    return [(node, ast.get_docstring(node)) for node in nodes if ast.get_docstring(node)]


def lines_of_words(text):
    """Return the number of lines of docstrings and comments."""
    lines = {number for number, line in enumerate(text.split("\n"), 1) if line.strip().startswith("#")}
    for node, _ in docstrings(text):
        lines.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return len(lines)


@pytest.mark.parametrize("name", READ)
def test_no_phrase_is_there(name):
    found = []
    for path in files_of(name):
        for line, phrase, advice in found_in(path.read_text(), path.suffix == ".py"):
            found.append(f"{path.relative_to(ROOT)}:{line}: {phrase!r}: {advice}")
    assert not found, "\n".join(found)


def test_phrases_are_found():
    phrases = ["tells", "of\n    which", "in whose", "given up", "so many", "likewise", "nobody", "as above", "shall"]
    phrases += ["lets go", "find out", "no more"]
    for phrase in phrases:
        code = (
            f'x = 1\n\ndef f():\n    """A sentence: {phrase} it."""  # {phrase}\n    g("{phrase.split(chr(10))[0]}")\n'
        )
        if "\n" in phrase:
            code = code.split("  #")[0] + "\n"
        assert len(found_in(code, True)) >= (1 if "\n" in phrase else 3), phrase
        assert len(found_in(f"A page, {phrase} it.\n", False)) == 1
    assert not found_in('"""Call `tell`, or ``nobody``."""\ntell = so_many = 1\n', True)
    assert found_in('def f():\n    """What it returns."""\n', True) == [(1, "What it returns.", "name the subject")]


def test_there_are_not_too_many_lines():
    assert (
        sum(lines_of_words(path.read_text()) for path in files_of("synkhronos") if path.suffix == ".py") <= MOST_LINES
    )
    assert lines_of_words('"""A.\n\nB.\n"""\n# c\nx = 1  # d\ndef f():\n    """E."""\n') == 6


def test_class_names_are_used_once():
    places = defaultdict(list)
    for path in sorted((ROOT / "synkhronos").rglob("*.py")):
        name = path.relative_to(ROOT / "synkhronos").as_posix()
        of_library = next((folder for folder in OF_LIBRARIES if name.startswith(folder)), None)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name].append("a library's" if of_library else name)
    twice = {name: found for name, found in places.items() if len({*found}) < len(found) or len({*found}) > 1}
    twice = {name: found for name, found in twice.items() if set(found) != {"a library's"}}
    assert not twice


if __name__ == "__main__":
    for path in [path for name in sys.argv[1:] or READ for path in files_of(name)]:
        for line, phrase, advice in found_in(path.read_text(), path.suffix == ".py"):
            print(f"{path}:{line}: {phrase!r}: {advice}")
