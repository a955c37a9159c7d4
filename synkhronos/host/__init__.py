"""This computer: its cores, memory and GPUs, and how this process uses them."""
