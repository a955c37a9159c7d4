"""This computer: its cores, memory, threads and GPUs, and how this process uses them."""
