"""Prepare Theano and run a program: ``python -m synkhronos program.py [args...]``."""

import sys

from synkhronos.cli.run import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
