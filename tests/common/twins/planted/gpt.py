"""A small GPT: tied head, causal attention, two embeddings."""

PLANT = ""
INPUT, OUTPUTS, VOCABULARY = (11,), 29, 29
DIM, HEADS, DEPTH = 32, 2, 2
PLANTS = {
    "not-causal": ("mask", "block1"),
    "exact-gelu": ("activation", "block0.fc2"),
    "untied": ("arrays", "head"),
    "embedding-scaled": ("scale", "block0.norm1"),
    "norm-epsilon": ("epsilon", "block0.norm2"),
    "no-positions": ("arrays", "places"),
    "parallel-block": ("wiring", "block1.norm2"),
    "residual-of-norm": ("wiring", "block1.norm2"),
    "head-bias": ("arrays", "head"),
    "tokens-reversed": ("order", "embed"),
    "frozen-embedding": ("frozen", "embed"),
    "padding-id": ("whole", "gradients"),
}
REWRITES = ["own-attention", "packed", "subclassed-blocks"]


def torch_model():
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
            self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
            self.fc1, self.fc2 = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

        def forward(self, x):
            b, t, _ = x.shape
            q, k, v = (one.view(b, t, HEADS, -1).transpose(1, 2) for one in self.qkv(self.norm1(x)).chunk(3, -1))
            h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(h.transpose(1, 2).reshape(b, t, DIM))
            return x + self.fc2(F.gelu(self.fc1(self.norm2(x)), approximate="tanh"))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.places = nn.Embedding(VOCABULARY, DIM), nn.Embedding(11, DIM)
            if PLANT == "padding-id":
                self.places = nn.Embedding(11, DIM, padding_idx=0)
            self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
            self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, VOCABULARY, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, ids):
            x = self.embed(ids) + self.places(torch.arange(ids.shape[1]))
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    return Gpt()


def keras_model():
    import keras
    from keras import layers as L
    from keras import ops

    plant = PLANT

    class Places(L.Layer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.table = L.Embedding(11, DIM)

        def call(self, x):
            return x + self.table(ops.arange(11))

    class Attention(L.Layer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.parts = [L.Dense(3 * DIM)] if plant == "packed" else [L.Dense(DIM) for _ in "qkv"]
            self.out = L.Dense(DIM)

        def call(self, x):
            made = ops.split(self.parts[0](x), 3, axis=-1) if plant == "packed" else [part(x) for part in self.parts]
            q, k, v = (ops.reshape(one, (-1, 11, HEADS, DIM // HEADS)) for one in made)
            y = ops.dot_product_attention(q, k, v, is_causal=True)
            return self.out(ops.reshape(y, (-1, 11, DIM)))

    class Block(L.Layer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.fc2, self.fc1 = L.Dense(DIM), L.Dense(4 * DIM)
            self.norm2, self.norm1 = L.LayerNormalization(epsilon=1e-5), L.LayerNormalization(epsilon=1e-5)
            self.attention = L.MultiHeadAttention(HEADS, DIM // HEADS)

        def call(self, x):
            h = self.norm1(x)
            x = x + self.attention(h, h, use_causal_mask=True)
            return x + self.fc2(ops.gelu(self.fc1(self.norm2(x)), approximate=True))

    inputs = keras.Input(INPUT, dtype="int64")
    embed = L.ReversibleEmbedding(VOCABULARY, DIM, name="embed", trainable=plant != "frozen-embedding")
    ids = ops.flip(inputs, axis=1) if plant == "tokens-reversed" else inputs
    x = embed(ids)
    if plant == "embedding-scaled":
        x = L.Rescaling(DIM**0.5)(x)
    if plant != "no-positions":
        x = Places(name="places")(x)
    for b in range(DEPTH):
        if plant == "subclassed-blocks":
            x = Block(name=f"block{b}")(x)
            continue
        h = before = L.LayerNormalization(epsilon=1e-5, name=f"block{b}.norm1")(x)
        if plant in ("own-attention", "packed"):
            h = Attention(name=f"block{b}.attention")(h)
        else:
            made = L.MultiHeadAttention(HEADS, DIM // HEADS, name=f"block{b}.attention")
            h = made(h, h, use_causal_mask=not (plant == "not-causal" and b == 1))
        first = x
        x = L.Add()([before if plant == "residual-of-norm" and b == 1 else x, h])
        epsilon = 1e-6 if plant == "norm-epsilon" and b == 0 else 1e-5
        source = first if plant == "parallel-block" and b == 1 else x
        h = L.LayerNormalization(epsilon=epsilon, name=f"block{b}.norm2")(source)
        h = L.Dense(4 * DIM, name=f"block{b}.fc1")(h)
        h = keras.activations.gelu(h, approximate=not (plant == "exact-gelu" and b == 0))
        x = L.Add()([x, L.Dense(DIM, name=f"block{b}.fc2")(h)])
    x = L.LayerNormalization(epsilon=1e-5, name="norm")(x)
    if plant in ("untied", "head-bias"):
        x = L.Dense(VOCABULARY, use_bias=plant == "head-bias", name="head")(x)
    else:
        x = embed(x, reverse=True)
    return keras.Model(inputs, x)
