"""Doctor for several hosts: ``mpirun ... python -m synkhronos doctor``.

Each process collects facts about its host (`facts`). Process 0 compares them (`comparison`), directs one pair of hosts
at a time to measure their link (`links`), and prints the findings (`report`).
"""
