"""What training needs besides functions and collectives, written on the published interface as any program could be.

`updates` has the update rules. Nothing here is imported by ``import synkhronos``: a program that wants it says so.
"""
