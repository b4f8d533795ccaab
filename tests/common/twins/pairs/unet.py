"""A U-Net of four levels, 32 to 256 channels, with batch normalization."""

INPUT, OUTPUTS = (96, 96, 3), 2
WIDTHS = (32, 64, 128, 256)


def torch_model():
    import itertools

    import torch
    import torch.nn.functional as F
    from torch import nn

    def block(inputs, outputs):
        layers = []
        for channels in (inputs, outputs):
            layers += [nn.Conv2d(channels, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        return nn.Sequential(*layers)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            pairs = list(itertools.pairwise(WIDTHS))
            self.down = nn.ModuleList([block(3, WIDTHS[0]), *(block(*pair) for pair in pairs)])
            self.ups = nn.ModuleList(nn.ConvTranspose2d(wide, narrow, 2, stride=2) for narrow, wide in pairs[::-1])
            self.up = nn.ModuleList(block(2 * narrow, narrow) for narrow, _ in pairs[::-1])
            self.head = nn.Conv2d(WIDTHS[0], 2, 1)

        def forward(self, x):
            kept = []
            for one in self.down:
                x = one(F.max_pool2d(x, 2) if kept else x)
                kept.append(x)
            kept.pop()
            for up, one in zip(self.ups, self.up, strict=True):
                x = one(torch.cat([kept.pop(), up(x)], 1))
            return self.head(x)

    return Net()


def keras_model():
    import keras
    from keras import layers as L

    from keras_impl.batch_norm import BatchNormalization

    def block(x, width):
        for _ in range(2):
            x = L.ReLU()(BatchNormalization()(L.Conv2D(width, 3, padding="same", use_bias=False)(x)))
        return x

    x = inputs = keras.Input(INPUT)
    kept = []
    for width in WIDTHS:
        x = block(L.MaxPooling2D(2)(x) if kept else x, width)
        kept.append(x)
    kept.pop()
    for width in WIDTHS[-2::-1]:
        x = block(L.Concatenate()([kept.pop(), L.Conv2DTranspose(width, 2, strides=2)(x)]), width)
    return keras.Model(inputs, L.Conv2D(2, 1)(x))
