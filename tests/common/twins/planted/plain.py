"""A convolutional network with batch normalization, pooling and dropout."""

PLANT = ""
INPUT, OUTPUTS = (20, 24, 3), 7
PLANTS = {
    "bn-default-epsilon": ("epsilon", "norm1"),
    "bn-default-momentum": ("momentum", "norm1"),
    "keras-variance": ("variance", "norm2"),
    "relu-forgotten": ("activation", "conv3"),
    "relu-before-norm": ("activation", "norm1"),
    "elu-for-relu": ("activation", "conv3"),
    "softmax-kept": ("activation", "after"),
    "average-pooling": ("pooling", "conv2"),
    "pooling-same": ("pooling", "conv2"),
    "stride-same": ("padding", "conv1"),
    "dilation-forgotten": ("dilation", "conv3"),
    "groups-depthwise": ("arrays", "conv3"),
    "no-bias": ("bias", "fc1"),
    "dropout-rate": ("dropout", "drop"),
    "dropout-forgotten": ("dropout", "drop"),
    "transposed-image": ("order", "conv1"),
    "l2": ("regularizer", "fc1"),
    "max-norm": ("regularizer", "fc1"),
    "frozen-norm": ("frozen", "norm2"),
    "input-scaled": ("scale", "conv1"),
    "torch-drops-always": ("dropout", "forward"),
}
# "dropout-always": a functional model overrides what its layers were called with.
REWRITES = [
    "dropout-always",
    "named-otherwise",
    "functional",
    "flatten-channels-first",
    "activation-in-layer",
    "relu-after-pooling",
]


def torch_model():
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = nn.Conv2d(3, 12, 5, stride=2, padding=2, bias=False)
            self.norm1 = nn.BatchNorm2d(12)
            self.conv2 = nn.Conv2d(12, 16, 3, padding=1)
            self.norm2 = nn.BatchNorm2d(16)
            self.conv3 = nn.Conv2d(16, 16, 3, padding=2, dilation=2, groups=16 if PLANT == "groups-depthwise" else 1)
            self.drop = nn.Dropout(0.25)
            self.fc1 = nn.Linear(16 * 5 * 6, 24)
            self.fc2 = nn.Linear(24, 7)

        def forward(self, x):
            x = F.max_pool2d(F.relu(self.norm1(self.conv1(x))), 2)
            x = F.relu(self.norm2(self.conv2(x)))
            x = self.drop(torch.flatten(F.relu(self.conv3(x)), 1))
            if PLANT == "torch-drops-always":
                x = F.dropout(x, 0.1)
            return self.fc2(F.relu(self.fc1(x)))

    return Net()


def keras_model():
    import keras
    from keras import layers as L
    from keras import ops

    from keras_impl.batch_norm import BatchNormalization

    plant = PLANT
    names = {"conv1": "b", "conv2": "a", "norm1": "z"} if plant == "named-otherwise" else {}

    def named(name):
        return {"name": names.get(name, name)}

    x = inputs = keras.Input(INPUT)
    if plant == "input-scaled":
        x = L.Rescaling(1 / 127.5, offset=-1.0)(x)
    if plant == "transposed-image":
        x = L.Permute((2, 1, 3))(x)
        x = L.Reshape((20, 24, 3))(x)
    if plant == "stride-same":
        x = L.Conv2D(12, 5, strides=2, padding="same", use_bias=False, **named("conv1"))(x)
    else:
        x = L.Conv2D(12, 5, strides=2, use_bias=False, **named("conv1"))(L.ZeroPadding2D(2)(x))
    if plant == "relu-before-norm":
        x = L.ReLU()(x)
    if plant == "bn-default-epsilon":
        x = BatchNormalization(epsilon=1e-3, **named("norm1"))(x)
    elif plant == "bn-default-momentum":
        x = BatchNormalization(momentum=0.99, **named("norm1"))(x)
    else:
        x = BatchNormalization(**named("norm1"))(x)
    if plant == "relu-after-pooling":
        x = ops.relu(L.MaxPooling2D(2)(x))
    elif plant == "average-pooling":
        x = L.AveragePooling2D(2)(L.ReLU()(x))
    elif plant == "pooling-same":
        x = L.MaxPooling2D(3, strides=2, padding="same")(L.ReLU()(x))
    elif plant == "relu-before-norm":
        x = L.MaxPooling2D(2)(x)
    elif plant == "functional":
        x = ops.max_pool(ops.relu(x), 2)
    else:
        x = L.MaxPooling2D(2)(L.ReLU()(x))
    x = L.Conv2D(16, 3, padding="same", **named("conv2"))(x)
    if plant == "keras-variance":
        x = L.BatchNormalization(momentum=0.9, epsilon=1e-5, name="norm2")(x)
    else:
        x = BatchNormalization(name="norm2", trainable=plant != "frozen-norm")(x)
    if plant == "elu-for-relu":
        x = L.ELU()(x)
    elif plant != "relu-forgotten":
        x = L.ReLU()(x)
    last = {"activation": "relu"} if plant == "activation-in-layer" else {}
    if plant == "dilation-forgotten":
        x = L.Conv2D(16, 3, padding="same", name="conv3")(x)
    else:
        x = L.Conv2D(16, 3, padding="same", dilation_rate=2, name="conv3", **last)(x)
    if not last:
        x = L.Activation("relu")(x)
    if plant == "flatten-channels-first":
        x = L.Permute((3, 1, 2))(x)
    x = L.Flatten()(x)
    if plant == "dropout-always":
        x = L.Dropout(0.25, name="drop")(x, training=True)
    elif plant != "dropout-forgotten":
        x = L.Dropout(0.5 if plant == "dropout-rate" else 0.25, name="drop")(x)
    kept = {"kernel_regularizer": keras.regularizers.L2(1e-4)} if plant == "l2" else {}
    if plant == "max-norm":
        kept = {"kernel_constraint": keras.constraints.MaxNorm(3.0)}
    x = L.Dense(24, activation="relu", use_bias=plant != "no-bias", name="fc1", **kept)(x)
    x = L.Dense(7, activation="softmax" if plant == "softmax-kept" else None, name="fc2")(x)
    return keras.Model(inputs, x)
