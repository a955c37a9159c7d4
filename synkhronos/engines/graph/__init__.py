"""What Theano and its descendants have in common: graphs of variables, function makers, storages.

The storage of a value is a list of one element. A shared variable's container
has it, and every function that uses the variable has it too, so a value that
is put into the list is seen by all of them::

    shared variable      clone of it           function
      container            container             maker.inputs[i].variable -> the shared variable
          \\                   |                  input_storage[i]
           +------------- storage = [value] -----------+
"""
