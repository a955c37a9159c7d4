"""Metadata of installed packages, faked by a folder on the path."""


def put_numpy_of_theano(folder):
    """Make processes that search this folder first see a NumPy version that Theano supports, unlike PyTensor's."""
    described = folder / "numpy-1.23.5.dist-info"
    described.mkdir(exist_ok=True)
    (described / "METADATA").write_text("Name: numpy\nVersion: 1.23.5\n")
