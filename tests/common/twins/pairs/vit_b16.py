"""ViT-B/16 of torchvision, at 96 pixels, and the same in Keras' own layers."""

INPUT, OUTPUTS = (96, 96, 3), 1000
DIM, HEADS, DEPTH, PATCH, TOKENS = 768, 12, 12, 16, 37


def torch_model():
    import torchvision

    return torchvision.models.vit_b_16(image_size=96)


def keras_model():
    import keras
    from keras import layers as L
    from keras import ops

    class Tokens(L.Layer):
        def build(self, shape):
            self.token = self.add_weight(shape=(1, 1, DIM), name="token")
            self.positions = self.add_weight(shape=(1, TOKENS, DIM), name="positions")

        def call(self, x):
            return ops.concatenate([ops.tile(self.token, (ops.shape(x)[0], 1, 1)), x], axis=1) + self.positions

    inputs = keras.Input(INPUT)
    x = L.Conv2D(DIM, PATCH, strides=PATCH, name="patches")(inputs)
    x = Tokens(name="tokens")(L.Reshape((TOKENS - 1, DIM))(x))
    for b in range(DEPTH):
        h = L.LayerNormalization(epsilon=1e-6, name=f"block{b}.norm1")(x)
        x = L.Add()([x, L.MultiHeadAttention(HEADS, DIM // HEADS, name=f"block{b}.attention")(h, h)])
        h = L.LayerNormalization(epsilon=1e-6, name=f"block{b}.norm2")(x)
        h = keras.activations.gelu(L.Dense(4 * DIM, name=f"block{b}.fc1")(h), approximate=False)
        x = L.Add()([x, L.Dense(DIM, name=f"block{b}.fc2")(h)])
    x = L.LayerNormalization(epsilon=1e-6, name="norm")(x)
    return keras.Model(inputs, L.Dense(1000, name="head")(x[:, 0]))
