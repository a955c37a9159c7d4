"""Residual networks in plain Lasagne code, independent of ranks; every block computes ``rectify(x + F(x))``.

Source: He, K., Zhang, X., Ren, S., & Sun, J. (2015). Deep residual learning for image recognition. arXiv:1512.03385.
"""

import lasagne
from batch_norm import BatchNormLayer
from lasagne import layers
from lasagne.nonlinearities import rectify, softmax

IMAGE_SHAPES = {50: (3, 224, 224)}  # for all other depths: (1, 32, 32)


def image_shape(depth):
    """Return the image shape ``(channels, rows, columns)`` for a network of this depth."""
    return IMAGE_SHAPES.get(depth, (1, 32, 32))


def build_resnet(depth, input_var=None, norm_layer=BatchNormLayer):
    """Build a residual network.

    Parameters
    ----------
    depth : int
        50: ResNet-50 for 3x224x224 images and 1,000 classes (table 1 of the paper). 6n + 2, such as 20, 32, 44, 56: the
        small network for 32x32 images and 10 classes (section 4.2), here with one channel. 50 also has the form 6n + 2,
        but always selects the large network.
    input_var : 4-dimensional expression, optional
        The images.
    norm_layer : class of layers, or None
        The normalization layer. With None, the last convolution of each block is initialized to zero, so that the
        network starts as a shallow network. Without this, activations would grow from block to block.

    Returns
    -------
    Layer
        The output layer, of shape ``(rows, classes)``.

    Raises
    ------
    ValueError
        If the depth is not supported.

    Notes
    -----
    ``lasagne.layers.count_params`` counts 25,610,216 parameters of ResNet-50. The published network trains 25,557,032
    of these parameters: convolutions without bias, beta and gamma, and one dense layer with bias. The running mean and
    inv_std of 26,560 normalized channels add 53,120 parameters. The first convolution has a bias of 64 elements, as in
    the published Caffe model and Lasagne's recipe, although the normalization after this layer cancels the bias.
    """
    if depth != 50 and (depth < 8 or depth % 6 != 2):
        raise ValueError(f"depth: expected 50, or 6n + 2 (such as 20, 32, 44 or 56), got {depth}")
    network = layers.InputLayer((None,) + image_shape(depth), input_var)
    build, n_classes = (build_large, 1000) if depth == 50 else (build_small, 10)
    network = layers.GlobalPoolLayer(build(network, depth, norm_layer))
    return layers.DenseLayer(network, n_classes, W=lasagne.init.GlorotUniform(), nonlinearity=softmax)


def build_large(network, depth, norm_layer):
    """Build blocks of 1x1, 3x3 and 1x1 convolutions; if the shape changes, the shortcut is a convolution (option B)."""
    # This bias is explained in the notes of `build_resnet`.
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
    """Build blocks of two 3x3 convolutions; if the shape changes, the shortcut has no parameters (option A)."""
    network = convolution(network, 16, 3, norm_layer)
    for num_filters in (16, 32, 64):
        for block in range((depth - 2) // 6):
            stride = 2 if block == 0 and num_filters > 16 else 1
            shortcut = halved(network) if stride == 2 else network
            network = convolution(network, num_filters, 3, norm_layer, stride)
            network = end_block(network, num_filters, 3, norm_layer, shortcut)
    return network


def convolution(incoming, num_filters, filter_size, norm_layer, stride=1, nonlinearity=rectify, W=None, bias=None):
    """Add a convolution, normalization and nonlinearity; the convolution has a bias on request or if not normalized."""
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
    """End a residual block: apply the last convolution, add the shortcut, and rectify."""
    W = None if norm_layer else lasagne.init.Constant(0)
    last = convolution(incoming, num_filters, filter_size, norm_layer, nonlinearity=None, W=W)
    return layers.NonlinearityLayer(layers.ElemwiseSumLayer([shortcut, last]), rectify)


def halved(incoming):
    """Subsample rows and columns by 2, and double the number of channels with zeros."""
    every_second = slice(None, None, 2)
    layer = layers.SliceLayer(layers.SliceLayer(incoming, every_second, axis=2), every_second, axis=3)
    return layers.PadLayer(layer, [layer.output_shape[1] // 2, 0, 0], batch_ndim=1)
