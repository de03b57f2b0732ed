"""The networks of the baselines, equal to the project's `cnn` and `cnn_photo`."""

import keras


def convnet(shape: tuple[int, int, int] = (28, 28, 1)) -> keras.Model:
    """Return the network of keras.io/examples/vision/mnist_convnet, to logits."""
    padding = "same" if shape[0] < 16 else "valid"
    return keras.Sequential(
        [
            keras.layers.Input(shape),
            keras.layers.Conv2D(32, 3, padding=padding, activation="relu"),
            keras.layers.MaxPooling2D(2),
            keras.layers.Conv2D(64, 3, padding=padding, activation="relu"),
            keras.layers.MaxPooling2D(2),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(10),
        ]
    )


def photo_convnet(size: int, classes: int) -> keras.Model:
    """Return blocks of two convolutions with BatchNorm, each with half the resolution, to logits."""
    layers = [keras.layers.Input((size, size, 3)), keras.layers.Rescaling(1 / 255)]
    for block, filters in enumerate((16, 32, 64, 128, 256)):
        layers += [keras.layers.MaxPooling2D(2)] if block else []
        for convolution in range(2):
            strides = 2 if block == convolution == 0 else 1
            layers += [keras.layers.Conv2D(filters, 3, strides, padding="same", use_bias=False)]
            layers += [keras.layers.BatchNormalization(), keras.layers.ReLU()]
    layers += [keras.layers.GlobalAveragePooling2D(), keras.layers.Dropout(0.3), keras.layers.Dense(classes)]
    return keras.Sequential(layers)
