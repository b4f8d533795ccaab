"""A vision transformer: packed projections in PyTorch, Keras' own attention, a class token."""

PLANT = ""
INPUT, OUTPUTS = (12, 12, 3), 5
DIM, HEADS, DEPTH, PATCH = 48, 3, 2, 4
PLANTS = {
    "epsilon-of-keras": ("epsilon", "block1.norm1"),
    "tanh-gelu": ("activation", "block0.fc2"),
    "relu-for-gelu": ("activation", "block1.fc2"),
    "other-heads": ("heads", "block0.attention"),
    "no-last-norm": ("normalization", "head"),
    "mean-of-tokens": ("selection", "head"),
    "last-token": ("selection", "head"),
    "post-norm": ("normalization", "block1.fc1"),
    "residual-forgotten": ("residual", "block1.norm2"),
    "attention-dropout": ("dropout", "block0.attention"),
    "no-positions": ("residual", "block0.norm1"),
    "scaled-queries": ("scale", "block0.attention"),
    "patches-by-column": ("order", "block0.norm1"),
    "causal": ("mask", "block1.attention"),
    "stopped-gradient": ("whole", "gradients"),
}
REWRITES = ["separate", "separate-vqk", "separate-kqv", "own-gelu", "subclass"]


def torch_model():
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
            self.attention = nn.MultiheadAttention(DIM, HEADS, batch_first=True)
            self.fc1, self.fc2 = nn.Linear(DIM, 64), nn.Linear(64, DIM)

        def forward(self, x):
            h = self.norm1(x)
            x = x + self.attention(h, h, h, need_weights=False)[0]
            return x + self.fc2(nn.functional.gelu(self.fc1(self.norm2(x))))

    class Vit(nn.Module):
        def __init__(self):
            super().__init__()
            self.patches = nn.Conv2d(3, DIM, PATCH, stride=PATCH)
            self.token = nn.Parameter(torch.zeros(1, 1, DIM))
            self.positions = nn.Parameter(torch.zeros(1, 10, DIM))
            self.blocks = nn.Sequential(*(Block() for _ in range(DEPTH)))
            self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, 5)

        def forward(self, x):
            x = self.patches(x).flatten(2).transpose(1, 2)
            x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions
            return self.head(self.norm(self.blocks(x))[:, 0])

    return Vit()


def keras_model():
    import keras
    from keras import layers as L
    from keras import ops

    plant = PLANT
    order = plant.removeprefix("separate-") if plant.startswith("separate-") else "qkv"

    class Tokens(L.Layer):
        def build(self, shape):
            self.token = self.add_weight(shape=(1, 1, DIM), name="class_token")
            if plant != "no-positions":
                self.positions = self.add_weight(shape=(10, DIM), name="place")

        def call(self, x):
            x = ops.concatenate([ops.tile(self.token, (ops.shape(x)[0], 1, 1)), x], axis=1)
            return x if plant == "no-positions" else x + self.positions

    class Separate(L.Layer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.parts = [L.Dense(DIM) for _ in "qkv"]
            self.out = L.Dense(DIM)

        def call(self, x):
            made = {role: part(x) for role, part in zip(order, self.parts, strict=True)}
            q, k, v = (ops.reshape(made[role], (-1, 10, HEADS, DIM // HEADS)) for role in "qkv")
            if plant == "scaled-queries":
                q = q * 0.5
            return self.out(ops.reshape(ops.dot_product_attention(q, k, v), (-1, 10, DIM)))

    def attention(h, b):
        name = f"block{b}.attention"
        if plant.startswith("separate") or (plant == "scaled-queries" and b == 0):
            return Separate(name=name)(h)
        heads = 6 if plant == "other-heads" and b == 0 else HEADS
        rate = 0.1 if plant == "attention-dropout" and b == 0 else 0.0
        made = L.MultiHeadAttention(heads, DIM // heads, dropout=rate, name=name)
        return made(h, h, use_causal_mask=plant == "causal" and b == 1)

    def block(x, b):
        epsilon = 1e-3 if plant == "epsilon-of-keras" and b == 1 else 1e-5
        h = L.LayerNormalization(epsilon=epsilon, name=f"block{b}.norm1")(x)
        h = attention(h, b)
        x = h if plant == "residual-forgotten" and b == 1 else L.Add()([x, h])
        h = L.LayerNormalization(epsilon=1e-5, name=f"block{b}.norm2")(x)
        h = L.Dense(64, name=f"block{b}.fc1")(x if plant == "post-norm" and b == 1 else h)
        if plant == "own-gelu":
            h = 0.5 * h * (1.0 + ops.erf(h / ops.sqrt(ops.cast(2.0, h.dtype))))
        elif plant == "relu-for-gelu" and b == 1:
            h = ops.relu(h)
        else:
            h = keras.activations.gelu(h, approximate=plant == "tanh-gelu" and b == 0)
        h = L.Dense(DIM, name=f"block{b}.fc2")(h)
        if plant == "stopped-gradient" and b == 1:
            h = ops.stop_gradient(h)
        return L.Add()([x, h])

    inputs = keras.Input(INPUT)
    x = L.Conv2D(DIM, PATCH, strides=PATCH, name="patches")(inputs)
    if plant == "patches-by-column":
        x = L.Permute((2, 1, 3))(x)
    x = Tokens(name="tokens")(L.Reshape((9, DIM))(x))
    for b in range(DEPTH):
        x = block(x, b)
    if plant != "no-last-norm":
        x = L.LayerNormalization(epsilon=1e-5, name="norm")(x)
    made = {"mean-of-tokens": L.GlobalAveragePooling1D(), "last-token": lambda y: y[:, -1]}
    x = made.get(plant, lambda y: y[:, 0])(x)
    model = keras.Model(inputs, L.Dense(5, name="head")(x))
    if plant != "subclass":
        return model

    class Wrapped(keras.Model):
        def __init__(self):
            super().__init__()
            self.inner = model

        def call(self, x, training=False):
            return self.inner(x, training=training)

    return Wrapped()
