"""A residual network: projections beside branches, strides, global pooling."""

PLANT = ""
INPUT, OUTPUTS = (24, 24, 3), 6
PLANTS = {
    "stride-on-first": ("strides", "stage2.conv1"),
    "same-at-stride": ("padding", "stem"),
    "padding-after": ("padding", "stem"),
    "shortcut-without-norm": ("normalization", "stage3.conv1"),
    "no-relu-after-sum": ("activation", "stage2.conv1"),
    "relu-in-shortcut": ("activation", "stage2.conv1"),
    "no-shortcut": ("residual", "stage2.conv1"),
    "max-for-mean": ("pooling", "head"),
    "biases": ("arrays", "stem/bias"),
    "leaky-slope": ("activation", "stage1.conv2"),
    "extra-layer": ("arrays", "extra"),
    "wider": ("arrays", "head"),
    "fewer-blocks": ("arrays", "blocks.2"),
    "no-pool": ("pooling", "stage1.conv1"),
    "pool-of-two": ("pooling", "stage1.conv1"),
}
REWRITES = ["shortcut-first", "mean-by-ops", "sequential-blocks"]


def torch_model():
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Block(nn.Module):
        def __init__(self, inputs, outputs, stride):
            super().__init__()
            self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
            self.norm1 = nn.BatchNorm2d(outputs)
            self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
            self.norm2 = nn.BatchNorm2d(outputs)
            self.down = None
            if stride > 1:
                self.down = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

        def forward(self, x):
            y = self.norm2(self.conv2(F.leaky_relu(self.norm1(self.conv1(x)), 0.1)))
            return torch.relu(y + (self.down(x) if self.down else x))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(3, 8, 7, stride=2, padding=3, bias=False)
            self.norm = nn.BatchNorm2d(8)
            self.blocks = nn.Sequential(Block(8, 8, 1), Block(8, 16, 2), Block(16, 24, 2))
            self.head = nn.Linear(24, 6)

        def forward(self, x):
            x = F.max_pool2d(torch.relu(self.norm(self.stem(x))), 3, 2, 1)
            return self.head(F.adaptive_avg_pool2d(self.blocks(x), 1).flatten(1))

    return Net()


def keras_model():
    import keras
    from keras import layers as L
    from keras import ops

    from keras_impl.batch_norm import BatchNormalization

    plant = PLANT

    def convolution(filters, size, stride, name):
        return L.Conv2D(filters, size, strides=stride, use_bias=plant == "biases", name=name)

    def block(x, filters, stride, name):
        inside = 1 if plant == "stride-on-first" and name == "stage2" else stride
        outside = stride // inside
        slope = 0.2 if plant == "leaky-slope" and name == "stage1" else 0.1
        short = x
        if stride > 1 and plant == "shortcut-first":
            short = BatchNormalization(name=f"{name}.down1")(convolution(filters, 1, stride, f"{name}.down0")(short))
        y = convolution(filters, 3, inside, f"{name}.conv1")(L.ZeroPadding2D(1)(x))
        y = L.LeakyReLU(negative_slope=slope)(BatchNormalization(name=f"{name}.norm1")(y))
        y = convolution(filters, 3, outside, f"{name}.conv2")(L.ZeroPadding2D(1)(y))
        y = BatchNormalization(name=f"{name}.norm2")(y)
        if stride > 1 and plant != "shortcut-first":
            short = convolution(filters, 1, stride, f"{name}.down0")(short)
            if not (plant == "shortcut-without-norm" and name == "stage2"):
                short = BatchNormalization(name=f"{name}.down1")(short)
        if plant == "relu-in-shortcut" and name == "stage1":
            y = ops.relu(y)
        if not (plant == "no-shortcut" and name == "stage1"):
            y = L.Add()([y, short])
        return y if plant == "no-relu-after-sum" and name == "stage1" else L.ReLU()(y)

    def wrapped(x, filters, stride, name):
        inner = keras.Input(x.shape[1:])
        return keras.Model(inner, block(inner, filters, stride, name), name=name)(x)

    x = inputs = keras.Input(INPUT)
    if plant == "same-at-stride":
        x = L.Conv2D(8, 7, strides=2, padding="same", use_bias=False, name="stem")(x)
    else:
        around = ((2, 3), (2, 3)) if plant == "padding-after" else 3
        x = convolution(8, 7, 2, "stem")(L.ZeroPadding2D(around)(x))
    x = L.ReLU()(BatchNormalization(name="norm")(x))
    if plant == "pool-of-two":
        x = L.MaxPooling2D(2)(x)
    elif plant != "no-pool":
        x = L.MaxPooling2D(3, strides=2)(L.ZeroPadding2D(1)(x))
    stages = [(8, 1, "stage1"), (16, 2, "stage2"), (24, 2, "stage3")]
    if plant == "fewer-blocks":
        stages.pop()
    for filters, stride, name in stages:
        x = (wrapped if plant == "sequential-blocks" else block)(x, filters, stride, name)
        if plant == "extra-layer" and name == "stage1":
            x = BatchNormalization(name="extra")(x)
    if plant == "max-for-mean":
        x = L.GlobalMaxPooling2D()(x)
    elif plant == "mean-by-ops":
        x = ops.mean(x, axis=(1, 2))
    else:
        x = L.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, L.Dense(9 if plant == "wider" else 6, name="head")(x))
