#!/usr/bin/env bash
# Install Slurm, which only tests/hosts/test_slurm.py needs: see tools/install_packages.sh.
#
# libpmix-dev contains the name of the library that Slurm loads for `srun --mpi=pmix`. Debian starts Slurm's and munge's
# services only where systemd runs. They have no configuration, and the tests do not use them.
exec "$(dirname "${BASH_SOURCE[0]}")/install_packages.sh" slurmctld slurmd slurm-client libpmix2 libpmix-dev
