"""Residual networks: every block computes ``rectify(x + F(x))``.

Source: He, K., Zhang, X., Ren, S., & Sun, J. (2015). Deep residual learning for image recognition. arXiv:1512.03385.

Ordinary Lasagne code: nothing here knows of ranks.
"""

import lasagne
from batch_norm import BatchNormLayer
from lasagne import layers
from lasagne.nonlinearities import rectify, softmax

IMAGE_SHAPES = {50: (3, 224, 224)}  # of all other depths: (1, 32, 32)


def image_shape(depth):
    """Return ``(channels, rows, columns)`` of the images that a network of this depth takes."""
    return IMAGE_SHAPES.get(depth, (1, 32, 32))


def build_resnet(depth, input_var=None, norm_layer=BatchNormLayer):
    """Build a residual network.

    Parameters
    ----------
    depth : int
        50: ResNet-50 for 3x224x224 images and 1,000 classes (table 1 of the paper). 6n + 2, as 20, 32, 44, 56: the
        small one for 32x32 images and 10 classes (section 4.2), here with one channel. 50 is 6n + 2 too, and always
        means the large one.
    input_var : 4-dimensional expression, optional
        The images.
    norm_layer : class of layers, or None
        What normalises. Without it the last convolution of each block is zero at first, so that the network begins as a
        shallow one: else activations would double from block to block.

    Returns
    -------
    Layer
        The output layer, of shape ``(rows, classes)``.

    Raises
    ------
    ValueError
        There is no such depth.

    Notes
    -----
    ResNet-50 has 25,610,216 parameters, all counted that ``lasagne.layers.count_params`` counts: 25,557,032 are trained
    in the network as published (convolutions without bias, beta and gamma, one dense layer with bias); the running mean
    and inv_std of 26,560 normalised channels add 53,120; and the first convolution has a bias of 64, which the
    normalisation after it cancels, because the published Caffe model has it and Lasagne's recipe therefore too.
    """
    if depth != 50 and (depth < 8 or depth % 6 != 2):
        raise ValueError(f"there is no residual network of depth {depth}: expected 50, or 6n + 2 as 20, 32, 44, 56")
    network = layers.InputLayer((None,) + image_shape(depth), input_var)
    build, n_classes = (build_large, 1000) if depth == 50 else (build_small, 10)
    network = layers.GlobalPoolLayer(build(network, depth, norm_layer))
    return layers.DenseLayer(network, n_classes, W=lasagne.init.GlorotUniform(), nonlinearity=softmax)


def build_large(network, depth, norm_layer):
    """Blocks of three convolutions, 1x1, 3x3 and 1x1; if the shape changes, a convolution as shortcut (option B)."""
    # with the bias that the notes above are about
    network = convolution(network, 64, 7, norm_layer, 2, bias=lasagne.init.Constant(0))
    network = layers.MaxPool2DLayer(network, 3, stride=2, pad=1)
    for num_filters, num_blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(num_blocks):
            stride = 2 if block == 0 and num_filters > 64 else 1
            shortcut = network
            if block == 0:
                shortcut = convolution(network, 4 * num_filters, 1, norm_layer, stride, nonlinearity=None)
            network = convolution(network, num_filters, 1, norm_layer, stride)
            network = convolution(network, num_filters, 3, norm_layer)
            network = end_block(network, 4 * num_filters, 1, norm_layer, shortcut)
    return network


def build_small(network, depth, norm_layer):
    """Blocks of two 3x3 convolutions; if the shape changes, a shortcut without parameters (option A)."""
    network = convolution(network, 16, 3, norm_layer)
    for num_filters in (16, 32, 64):
        for block in range((depth - 2) // 6):
            stride = 2 if block == 0 and num_filters > 16 else 1
            shortcut = halved(network) if stride == 2 else network
            network = convolution(network, num_filters, 3, norm_layer, stride)
            network = end_block(network, num_filters, 3, norm_layer, shortcut)
    return network


def convolution(incoming, num_filters, filter_size, norm_layer, stride=1, nonlinearity=rectify, W=None, bias=None):
    """Convolve, normalise, apply the nonlinearity; there is a bias if it is given, or nothing normalises."""
    network = layers.Conv2DLayer(
        incoming,
        num_filters,
        filter_size,
        stride=stride,
        pad=filter_size // 2,
        W=W or lasagne.init.HeNormal("relu"),
        b=bias if norm_layer else lasagne.init.Constant(0),
        nonlinearity=None,
    )
    if norm_layer:
        network = norm_layer(network)
    return layers.NonlinearityLayer(network, nonlinearity) if nonlinearity else network


def end_block(incoming, num_filters, filter_size, norm_layer, shortcut):
    """Convolve a last time, add the shortcut, rectify."""
    W = None if norm_layer else lasagne.init.Constant(0)
    last = convolution(incoming, num_filters, filter_size, norm_layer, nonlinearity=None, W=W)
    return layers.NonlinearityLayer(layers.ElemwiseSumLayer([shortcut, last]), rectify)


def halved(incoming):
    """Take every second row and column, and as many channels again, of zeros."""
    every_second = slice(None, None, 2)
    layer = layers.SliceLayer(layers.SliceLayer(incoming, every_second, axis=2), every_second, axis=3)
    return layers.PadLayer(layer, [layer.output_shape[1] // 2, 0, 0], batch_ndim=1)
