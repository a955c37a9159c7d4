"""Training, loading, batch normalisation and PyMC models: what a program may leave out.

Nothing here is imported by ``import synkhronos``: a program imports what it uses::

    train.make_train_function      loss, rule --> one call per step
      |-- updates.*                loss, params --> gradients, steps
      |     `-- gradients, scalars, parameters
      `-- training_graph           clipping, checks
    rules.*                        steps of each rank's own --> now and then, one answer
    rates.*                        learning rates of large batches
    train.average_batch_norm       running statistics --> their mean over ranks
    batch_norm.BatchNormLayer      a layer of Lasagne: statistics over the rows of all ranks
    loader.loader                  batches from processes of their own (``synkhronos.loader``)
    checkpoint.save, load          a training in one file
    pymc.data_parallel             a model of PyMC: likelihoods over the rows of all ranks
"""
