"""Parts shared by the engines for Theano and its descendants: graphs of variables, function makers, storages.

A value's storage is a list of one element, shared by the variable's container and all functions that use it::

    shared variable      clone of it           function
      container            container             maker.inputs[i].variable -> the shared variable
          \\                   |                  input_storage[i]
           +------------- storage = [value] -----------+
"""
