"""A GPT of 6 layers on characters: packed projections and a tied head in PyTorch, Keras' own attention."""

INPUT, OUTPUTS, VOCABULARY = (64,), 65, 65
DIM, HEADS, DEPTH = 384, 6, 6


def torch_model():
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
            self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
            self.fc1, self.fc2, self.drop = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM), nn.Dropout(0.2)

        def forward(self, x):
            b, t, _ = x.shape
            q, k, v = (one.view(b, t, HEADS, -1).transpose(1, 2) for one in self.qkv(self.norm1(x)).chunk(3, -1))
            h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(h.transpose(1, 2).reshape(b, t, DIM))
            return x + self.drop(self.fc2(F.gelu(self.fc1(self.norm2(x)))))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.places = nn.Embedding(VOCABULARY, DIM), nn.Embedding(*INPUT, DIM)
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

    class Places(L.Layer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.table = L.Embedding(*INPUT, DIM)

        def call(self, x):
            return x + self.table(ops.arange(INPUT[0]))

    inputs = keras.Input(INPUT, dtype="int64")
    embed = L.ReversibleEmbedding(VOCABULARY, DIM, name="embed")
    x = Places(name="places")(embed(inputs))
    for b in range(DEPTH):
        h = L.LayerNormalization(epsilon=1e-5, name=f"block{b}.norm1")(x)
        attention = L.MultiHeadAttention(HEADS, DIM // HEADS, name=f"block{b}.attention")
        x = L.Add()([x, attention(h, h, use_causal_mask=True)])
        h = L.LayerNormalization(epsilon=1e-5, name=f"block{b}.norm2")(x)
        h = keras.activations.gelu(L.Dense(4 * DIM, name=f"block{b}.fc1")(h), approximate=False)
        x = L.Add()([x, L.Dropout(0.2)(L.Dense(DIM, name=f"block{b}.fc2")(h))])
    return keras.Model(inputs, embed(L.LayerNormalization(epsilon=1e-5, name="norm")(x), reverse=True))
