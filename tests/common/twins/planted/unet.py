"""A U-Net with group normalization, transposed convolutions and a gate; Keras' is a subclass in another order."""

PLANT = ""
INPUT, OUTPUTS = (16, 24, 3), 5
PLANTS = {
    "skips-swapped": ("order", "block5/conv1"),
    "group-norm-epsilon": ("epsilon", "block2/norm1"),
    "other-groups": ("groups", "block3/norm2"),
    "silu-missing": ("activation", "block2/conv1"),
    "upsampled": ("arrays", "ups.0"),
    "no-skip": ("arrays", "block4"),
    "no-gate": ("arrays", "gate"),
    "gate-twice": ("scale", "head"),
    "average-pool": ("pooling", "block2/conv1"),
}
REWRITES = ["built-in-order", "pooled-by-ops"]


def torch_model():
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Block(nn.Module):
        def __init__(self, inputs, outputs):
            super().__init__()
            self.conv1, self.norm1 = nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs)
            self.conv2, self.norm2 = nn.Conv2d(outputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs)

        def forward(self, x):
            return F.silu(self.norm2(self.conv2(F.silu(self.norm1(self.conv1(x))))))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.down = nn.ModuleList([nn.Sequential(Block(3, 8)), nn.Sequential(Block(8, 16))])
            self.middle = Block(16, 32)
            self.ups = nn.ModuleList([nn.ConvTranspose2d(32, 16, 2, stride=2), nn.ConvTranspose2d(16, 8, 2, stride=2)])
            self.up = nn.ModuleList([Block(32, 16), Block(16, 8)])
            self.gate = nn.Parameter(torch.ones(8))
            self.head = nn.Conv2d(8, 5, 1)

        def forward(self, x):
            kept = []
            for block in self.down:
                x = block(x)
                kept.append(x)
                x = F.max_pool2d(x, 2)
            x = self.middle(x)
            for up, block in zip(self.ups, self.up, strict=True):
                x = block(torch.cat([kept.pop(), up(x)], 1))
            return self.head(x * self.gate.view(1, -1, 1, 1))

    return Net()


def keras_model():
    import keras
    from keras import layers as L
    from keras import ops

    plant = PLANT

    class Block(L.Layer):
        def __init__(self, filters, name):
            super().__init__(name=name)
            epsilon = 1e-3 if plant == "group-norm-epsilon" and name == "block2" else 1e-5
            groups = 2 if plant == "other-groups" and name == "block3" else 4
            self.norm2 = L.GroupNormalization(groups, epsilon=1e-5, name="norm2")
            self.conv2 = L.Conv2D(filters, 3, padding="same", name="conv2")
            self.norm1 = L.GroupNormalization(4, epsilon=epsilon, name="norm1")
            self.conv1 = L.Conv2D(filters, 3, padding="same", name="conv1")
            self.active = not (plant == "silu-missing" and name == "block1")

        def call(self, x):
            x = self.norm1(self.conv1(x))
            x = self.norm2(self.conv2(ops.silu(x)))
            return ops.silu(x) if self.active else x

    class Gate(L.Layer):
        def build(self, shape):
            self.values = self.add_weight(shape=(shape[-1],), name="gate_values")

        def call(self, x):
            return x * self.values * self.values if plant == "gate-twice" else x * self.values

    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            if plant != "built-in-order":
                self.head, self.gate = L.Conv2D(5, 1, name="head"), Gate(name="gate")
            self.b4, self.b5 = Block(16, "block4"), Block(8, "block5")
            self.up1 = L.UpSampling2D(2) if plant == "upsampled" else L.Conv2DTranspose(16, 2, strides=2, name="up1")
            self.up2 = L.Conv2DTranspose(8, 2, strides=2, name="up2")
            self.b1, self.b2, self.b3 = Block(8, "block1"), Block(16, "block2"), Block(32, "block3")
            self.pool = (L.AveragePooling2D if plant == "average-pool" else L.MaxPooling2D)(2)
            if plant == "built-in-order":
                self.gate, self.head = Gate(name="gate"), L.Conv2D(5, 1, name="head")

        def call(self, x, training=False):
            pool = (lambda y: ops.max_pool(y, 2)) if plant == "pooled-by-ops" else self.pool
            first = self.b1(x)
            second = self.b2(pool(first))
            middle = self.up1(self.b3(pool(second)))
            x = self.b4(middle if plant == "no-skip" else ops.concatenate([second, middle], -1))
            both = [self.up2(x), first] if plant == "skips-swapped" else [first, self.up2(x)]
            x = self.b5(ops.concatenate(both, -1))
            return self.head(x if plant == "no-gate" else self.gate(x))

    return Net()
