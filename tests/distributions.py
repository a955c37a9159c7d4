"""What a folder on the path says of installed packages."""


def put_numpy_of_theano(folder):
    """Let processes that look into this folder first find a NumPy that Theano runs with: with that of PyTensor it is refused."""
    described = folder / "numpy-1.23.5.dist-info"
    described.mkdir(exist_ok=True)
    (described / "METADATA").write_text("Name: numpy\nVersion: 1.23.5\n")
