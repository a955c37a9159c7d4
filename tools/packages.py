"""Build the sdist and the wheel, and test each in a clean environment; run by ``make packages``.

::

    files in git --> sdist --> wheel      python -m build
                       |         |
                     pip       pip        an environment each, outside the clone, with this Python's engine; for the
                       |         |        sdist with the oldest versions that pyproject.toml allows
                     checks: README's complete program and the kernels; for the wheel, also mypy
"""

import email
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENGINE = "theano" if sys.version_info < (3, 12) else "pytensor"


def call(*command, folder):
    """Run a command without ``PYTHONPATH`` and with its own compilation caches; return its output."""
    print("packages:", *command, flush=True)
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment.update(
        THEANO_FLAGS=f"base_compiledir={folder}/theano", PYTENSOR_FLAGS=f"base_compiledir={folder}/pytensor"
    )
    done = subprocess.run(
        [str(word) for word in command],
        cwd=str(folder),
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
    )
    if done.returncode:
        raise SystemExit(f"packages: the command failed:\n{done.stdout}")
    return done.stdout


def sources():
    """Return the tracked files, and new files that git does not ignore, relative to the repository's root."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.check_output(command, cwd=str(ROOT), universal_newlines=True).split("\0")
    return sorted(name for name in names if name and (ROOT / name).exists())


def build(folder):
    """Build sdist and wheel from a copy of the `sources`; return their paths. The sdist must contain all sources."""
    names = sources()
    for name in names:
        target = folder / "source" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    call(sys.executable, "-m", "build", "--outdir", folder / "dist", folder / "source", folder=folder)
    (sdist,), (wheel,) = (folder / "dist").glob("*.tar.gz"), (folder / "dist").glob("*.whl")
    with tarfile.open(str(sdist)) as archive:
        inside = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    missing = [name for name in names if name not in inside]
    if missing:
        raise SystemExit(f"packages: the sdist lacks {', '.join(missing)}: add these files to MANIFEST.in")
    return sdist, wheel


def oldest(wheel):
    """Return the lower bounds of a wheel's requirements as exact versions, one per line."""
    with zipfile.ZipFile(str(wheel)) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = email.message_from_bytes(archive.read(name))
    needed = [text for text in metadata.get_all("Requires-Dist") if "extra ==" not in text]
    return "".join(text.replace(">=", "==", 1) + "\n" for text in needed)


def program():
    """Return README's complete program, for this Python's engine, and the program's expected output."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    text, printed = re.search(
        r"## A complete program\n\n```python\n(.*?)```\n\nIt prints `(.*?)`", readme, re.DOTALL
    ).groups()
    return text.replace("theano", ENGINE), printed


def install(folder, package, *options):
    """Install a package with this Python's engine into a new environment; return the environment's Python."""
    python = folder / "environment" / "bin" / "python"
    folder.mkdir()
    call(sys.executable, "-m", "venv", folder / "environment", folder=folder)
    call(
        python,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "-q",
        f"{package}[{ENGINE}]",
        *options,
        folder=folder,
    )
    return python


def use(folder, python):
    """Run README's program with an interpreter, and check that the library's kernels are loaded from the folder."""
    text, printed = program()
    (folder / "program.py").write_text(text, encoding="utf-8")
    found = call(python, "program.py", folder=folder).splitlines()
    if printed not in found:
        raise SystemExit(f"packages: expected README's program to print\n{printed}\ngot\n" + "\n".join(found))
    look = "import synkhronos.kernels.copy as copy; print(copy.kernels.__file__)"
    path = call(python, "-c", look, folder=folder).splitlines()[-1]
    if not path.startswith(str(folder)):
        raise SystemExit(f"packages: expected kernels in {folder}, got {path}")


def check_types(folder, python):
    """Check README's program with mypy, and check that mypy reports an argument of a wrong type."""
    (folder / "wrong.py").write_text('import synkhronos as synk\n\nsynk.fork("two")\n', encoding="utf-8")
    mypy = [sys.executable, "-m", "mypy", "--config-file=", "--ignore-missing-imports", "--python-executable", python]
    call(*mypy, "program.py", folder=folder)
    try:
        call(*mypy, "wrong.py", folder=folder)
    except SystemExit as found:
        if 'has incompatible type "str"' in str(found):
            return
        raise
    raise SystemExit("packages: expected mypy to reject a string as n_ranks: is py.typed in the wheel?")


def main():
    """Build the packages, install them, and run the checks."""
    with tempfile.TemporaryDirectory(prefix="synkhronos-packages-") as name:
        folder = Path(name).resolve()
        sdist, wheel = build(folder)
        python = install(folder / "wheel", wheel)
        use(folder / "wheel", python)
        check_types(folder / "wheel", python)
        (folder / "oldest.txt").write_text(oldest(wheel), encoding="utf-8")
        use(folder / "sdist", install(folder / "sdist", sdist, "-c", folder / "oldest.txt"))
    print(f"packages: {sdist.name} and {wheel.name} install and run, with {ENGINE}")


if __name__ == "__main__":
    main()
