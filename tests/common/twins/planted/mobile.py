"""Inverted residuals as in MobileNetV3: depthwise convolutions, squeeze and excitation, hard activations."""

PLANT = ""
INPUT, OUTPUTS = (16, 16, 3), 4
PLANTS = {
    "swish-for-hard-swish": ("activation", "expand"),
    "sigmoid-in-gate": ("activation", "project"),
    "no-gate": ("arrays", "squeeze"),
    "gate-added": ("scale", "project"),
    "depthwise-same": ("padding", "depthwise"),
    "epsilon-in-one": ("epsilon", "norm2"),
    "momentum-of-paper": ("momentum", "norm"),
    "relu6-missing": ("activation", "head"),
    "global-pool-before-conv": ("pooling", "last"),
    "frozen-stem": ("frozen", "stem"),
    "label-smoothing-head": ("activation", "after"),
}
REWRITES = ["dense-gate", "depth-by-groups", "dense-for-pointwise"]


def torch_model():
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
            self.norm = nn.BatchNorm2d(8, eps=1e-3, momentum=0.01)
            self.expand = nn.Conv2d(8, 32, 1, bias=False)
            self.norm1 = nn.BatchNorm2d(32, eps=1e-3, momentum=0.01)
            self.depthwise = nn.Conv2d(32, 32, 5, stride=2, padding=2, groups=32, bias=False)
            self.norm2 = nn.BatchNorm2d(32, eps=1e-3, momentum=0.01)
            self.squeeze, self.excite = nn.Conv2d(32, 8, 1), nn.Conv2d(8, 32, 1)
            self.project = nn.Conv2d(32, 12, 1, bias=False)
            self.last, self.head = nn.Linear(12, 20), nn.Linear(20, 4)

        def forward(self, x):
            x = F.hardswish(self.norm(self.stem(x)))
            x = F.hardswish(self.norm1(self.expand(x)))
            x = F.hardswish(self.norm2(self.depthwise(x)))
            s = self.excite(F.relu(self.squeeze(x.mean((2, 3), keepdim=True))))
            x = self.project(x * F.hardsigmoid(s))
            return self.head(F.relu6(self.last(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))))

    return Net()


def keras_model():
    import keras
    from keras import layers as L
    from keras import ops

    from keras_impl.batch_norm import BatchNormalization

    plant = PLANT

    def norm(name, epsilon=1e-3):
        momentum = 0.999 if plant == "momentum-of-paper" and name == "norm" else 0.99
        return BatchNormalization(momentum=momentum, epsilon=epsilon, name=name)

    def hard_swish(x):
        return ops.silu(x) if plant == "swish-for-hard-swish" else ops.hard_silu(x)

    x = inputs = keras.Input(INPUT)
    x = L.Conv2D(8, 3, padding="same", use_bias=False, name="stem", trainable=plant != "frozen-stem")(x)
    x = hard_swish(norm("norm")(x))
    if plant == "dense-for-pointwise":
        x = L.Dense(32, use_bias=False, name="expand")(x)
    else:
        x = L.Conv2D(32, 1, use_bias=False, name="expand")(x)
    x = L.Activation("hard_silu")(norm("norm1")(x))
    if plant == "depthwise-same":
        x = L.DepthwiseConv2D(5, strides=2, padding="same", use_bias=False, name="depthwise")(x)
    elif plant == "depth-by-groups":
        x = L.Conv2D(32, 5, strides=2, groups=32, use_bias=False, name="depthwise")(L.ZeroPadding2D(2)(x))
    else:
        x = L.DepthwiseConv2D(5, strides=2, use_bias=False, name="depthwise")(L.ZeroPadding2D(2)(x))
    x = ops.hard_silu(norm("norm2", 1e-5 if plant == "epsilon-in-one" else 1e-3)(x))
    if plant != "no-gate":
        if plant == "dense-gate":
            s = L.Dense(8, activation="relu", name="squeeze")(L.GlobalAveragePooling2D()(x))
            s = L.Reshape((1, 1, 32))(L.Dense(32, activation="hard_sigmoid", name="excite")(s))
        else:
            s = L.Conv2D(8, 1, activation="relu", name="squeeze")(L.GlobalAveragePooling2D(keepdims=True)(x))
            last = "sigmoid" if plant == "sigmoid-in-gate" else "hard_sigmoid"
            s = L.Conv2D(32, 1, activation=last, name="excite")(s)
        x = L.Add()([x, s]) if plant == "gate-added" else L.Multiply()([x, s])
    x = L.Conv2D(12, 1, use_bias=False, name="project")(x)
    x = L.GlobalMaxPooling2D()(x) if plant == "global-pool-before-conv" else L.GlobalAveragePooling2D()(x)
    x = L.Dense(20, name="last")(x)
    x = L.ReLU(max_value=None if plant == "relu6-missing" else 6.0)(x)
    return keras.Model(
        inputs, L.Dense(4, activation="sigmoid" if plant == "label-smoothing-head" else None, name="head")(x)
    )
