"""Optional extensions for training, data loading, checkpoints, batch normalization and PyMC models.

``import synkhronos`` does not import these modules. A program imports the modules that it uses. They use only public
names of `synkhronos` and the names of `synkhronos.extending`::

    train.make_train_function      loss, rule --> one call per step
      |-- updates.*                loss, params --> gradients, steps
      `-- training_graph           clipping, checks
    rules.*                        independent steps on each rank, with occasional exchanges
    rates.*                        learning rates for large batches
    train.average_batch_norm       running statistics --> their mean over ranks
    batch_norm.BatchNormLayer      a Lasagne layer with statistics over the rows of all ranks
    loader.loader                  batches from separate processes (``synkhronos.loader``)
    checkpoint.save, load          saves and restores the state of a training run
    recorder.Recorder              records times and values of each epoch
    pymc.data_parallel             a PyMC model whose likelihood is computed by all ranks
"""
