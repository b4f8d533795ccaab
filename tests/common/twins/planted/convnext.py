"""ConvNeXt's blocks: large depthwise convolutions, layer scale, stochastic depth; and an RMS norm."""

PLANT = ""
INPUT, OUTPUTS = (16, 16, 3), 8
PLANTS = {
    "norm-epsilon": ("epsilon", "block1.norm"),
    "scale-missing": ("arrays", "scale"),
    "tanh-gelu": ("activation", "block0.fc2"),
    "drop-path-rate": ("dropout", "blocks.1"),
    "norm-before-pool": ("pooling", "last_norm"),
    "kernel-smaller": ("arrays", "block1.depthwise"),
    "residual-after-norm": ("wiring", "block1.depthwise"),
    "rms-without-scale": ("arrays", "rms"),
    "no-scaling-of-logits": ("scale", "after"),
}
REWRITES = ["dense-by-convolution"]


def torch_model():
    import torch
    import torch.nn.functional as F
    from torch import nn

    class DropPath(nn.Module):
        def __init__(self, p):
            super().__init__()
            self.drop_prob = p

        def forward(self, x):
            if not self.training or not self.drop_prob:
                return x
            keep = 1 - self.drop_prob
            return x * torch.bernoulli(torch.full((len(x), 1, 1, 1), keep)) / keep

    class Block(nn.Module):
        def __init__(self, rate):
            super().__init__()
            self.depthwise = nn.Conv2d(12, 12, 7, padding=3, groups=12)
            self.norm = nn.LayerNorm(12, eps=1e-6)
            self.fc1, self.fc2 = nn.Linear(12, 48), nn.Linear(48, 12)
            self.scale = nn.Parameter(torch.ones(12))
            self.drop = DropPath(rate)

        def forward(self, x):
            y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
            y = self.scale * self.fc2(F.gelu(self.fc1(y)))
            return x + self.drop(y.permute(0, 3, 1, 2))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(3, 12, 4, stride=4)
            self.blocks = nn.Sequential(Block(0.1), Block(0.2))
            self.last_norm, self.rms = nn.LayerNorm(12, eps=1e-6), nn.RMSNorm(12, eps=1e-6)
            self.head = nn.Linear(12, 8)

        def forward(self, x):
            x = self.blocks(self.stem(x)).mean((2, 3))
            return self.head(self.rms(self.last_norm(x))) * 0.5

    return Net()


def keras_model():
    import keras
    from keras import layers as L
    from keras import ops

    plant = PLANT

    class DropPath(L.Layer):
        def __init__(self, rate, **kwargs):
            super().__init__(**kwargs)
            self.drop_prob = rate
            self.seed_generator = keras.random.SeedGenerator(1)

        def call(self, x, training=False):
            if not training or not self.drop_prob:
                return x
            shape = (ops.shape(x)[0], 1, 1, 1)
            return x * ops.cast(keras.random.uniform(shape, seed=self.seed_generator) > self.drop_prob, x.dtype)

    class Scale(L.Layer):
        def build(self, shape):
            self.gamma = self.add_weight(shape=(shape[-1],), name="gamma_of_block")

        def call(self, x):
            return x * self.gamma

    def block(x, b):
        size = 5 if plant == "kernel-smaller" and b == 1 else 7
        y = L.DepthwiseConv2D(size, padding="same", name=f"block{b}.depthwise")(x)
        epsilon = 1e-3 if plant == "norm-epsilon" and b == 1 else 1e-6
        y = first = L.LayerNormalization(epsilon=epsilon, name=f"block{b}.norm")(y)
        if plant == "dense-by-convolution":
            y = L.Conv2D(48, 1, name=f"block{b}.fc1")(y)
        else:
            y = L.Dense(48, name=f"block{b}.fc1")(y)
        y = ops.gelu(y, approximate=plant == "tanh-gelu" and b == 0)
        y = L.Dense(12, name=f"block{b}.fc2")(y)
        if plant != "scale-missing":
            y = Scale(name=f"block{b}.scale")(y)
        rate = 0.1 * (b + 1) if plant != "drop-path-rate" or b == 0 else 0.3
        y = DropPath(rate, name=f"block{b}.drop")(y)
        return L.Add()([first if plant == "residual-after-norm" and b == 0 else x, y])

    x = inputs = keras.Input(INPUT)
    x = L.Conv2D(12, 4, strides=4, name="stem")(x)
    for b in range(2):
        x = block(x, b)
    x = L.GlobalMaxPooling2D()(x) if plant == "norm-before-pool" else L.GlobalAveragePooling2D()(x)
    x = L.LayerNormalization(epsilon=1e-6, name="last_norm")(x)
    x = (L.UnitNormalization() if plant == "rms-without-scale" else L.RMSNormalization(epsilon=1e-6, name="rms"))(x)
    x = L.Dense(8, name="head")(x)
    return keras.Model(inputs, x if plant == "no-scaling-of-logits" else x * 0.5)
