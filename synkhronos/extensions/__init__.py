"""Training, batch normalisation and PyMC models, all written on the published interface.

Nothing here is imported by ``import synkhronos``: a program imports what it uses::

    train.make_train_function      loss, rule --> one call per step
      |-- updates.*                loss, params --> gradients, steps
      |     `-- gradients, scalars, parameters
      `-- training_graph           clipping, checks
    train.average_batch_norm       running statistics --> their mean over ranks
    batch_norm.BatchNormLayer      a layer of Lasagne: statistics over the rows of all ranks
    pymc.data_parallel             a model of PyMC: likelihoods over the rows of all ranks
"""
