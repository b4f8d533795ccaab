"""Settings of what is computed: samples, model, update rule, learning rate, length."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, FiniteFloat

from common.config.rules import (
    IN_RECORD,
    NOTHING,
    SPEED,
    Count,
    CountFromZero,
    Fraction,
    ImageSize,
    LimitedCount,
    LimitedCountFromZero,
    LimitedRate,
    NotNegative,
    Positive,
    Settings,
)
from common.errors import UserError
from common.model.specs import MODEL_NAMES, is_model_name
from common.utils.printable import suggestion

OneDNN = Literal["on", "off", "framework"]


@dataclass(frozen=True)
class DataConfig(Settings):
    """the samples, and how pixels become numbers"""

    dataset: Annotated[str, IN_RECORD] = "mnist"
    """mnist, fashion_mnist, cifar10, synthetic, synthetic:SAMPLESxHEIGHTxWIDTHxCHANNELSxCLASSES, images:PATH (a folder
    with one subfolder per class, or with such folders named train, val and test) or prepared:FILE (written by
    `python -m common images prepare`)"""
    data_folder: Annotated[str | None, NOTHING] = None
    """folder with the files of the data set, searched after the cache and before a download"""
    image_size: Annotated[ImageSize | None, IN_RECORD] = None
    """height x width in pixels to which images:PATH is resized (None: all images already have the same size)"""
    gray: bool = False
    """convert images:PATH to one gray channel"""
    normalization: Literal["standard", "unit"] = "standard"
    """standard: (pixel / 255 - mean) / standard deviation of the data set; unit: pixel / 255"""
    validation_share: Fraction = 0.0
    """fraction of the training samples used for validation, from 0 to below 1, chosen by the seed before sharding
    (prepared:FILE and images:PATH with a folder val have their own validation samples)"""


@dataclass(frozen=True)
class ModelConfig(Settings):
    """the model"""

    model: Annotated[str, IN_RECORD] = "cnn"
    """mlp, cnn, simplecnn, resnet34, dense500 or deep, such as deep:8x1024 for 8 layers of 1,024 units (deep: 4x128)"""
    outputs: Annotated[int, Field(ge=2, le=10**6)] | None = None
    """units of the last layer (None: the number of classes of the data set)"""
    output_activation: Literal["linear", "sigmoid", "softmax"] = "linear"
    """activation of the last layer before the mse loss; cross_entropy needs linear outputs"""
    dropout: bool = True
    """use the dropout layers of the model in training"""
    batch_norm: Literal["trained", "frozen_after_validation"] = "trained"
    """frozen_after_validation: from the first validation on, training also uses the running statistics of BatchNorm,
    which no longer change (to reproduce a mistake in the thesis)"""
    dtype: Literal["float32", "float64"] = "float32"
    """type of weights and computation; float64 is meant for comparisons of the two frameworks"""
    compile: Annotated[bool, SPEED] = False
    """compile the forward and backward pass of training: with torch.compile (needs a C++ compiler) or, in Keras, XLA"""
    onednn: Annotated[OneDNN, SPEED] = "on"
    """use oneDNN on CPUs. on: if the framework was built with it; framework: the default of the installed framework
    (PyTorch: always; TensorFlow: on some processors)"""
    tuned: Annotated[bool, SPEED] = False
    """record that the speed settings are the best for this framework, as recipes of `launch tune` do; `analysis
    frameworks` compares such runs only with each other"""
    tuned_by: Annotated[str | None, NOTHING] = None
    """the search that found the speed settings of a tuned run, as recipes of `launch tune` record it (None: unknown)"""

    def __post_init__(self) -> None:
        if not is_model_name(self.model):
            remedy = f"{suggestion(self.model, MODEL_NAMES)}Choose one of {', '.join(MODEL_NAMES)}"
            raise UserError(f"unknown model. Received: --model {self.model}. {remedy}")


def before_onednn(settings: Any) -> Any:
    """Return settings of a model, of any age, as they are called today: oneDNN was once left to the framework."""
    if isinstance(settings, dict) and settings.get("onednn", "auto") == "auto":
        return {**settings, "onednn": "framework"}
    return settings


@dataclass(frozen=True)
class OptimizerConfig(Settings):
    """the update rule: PyTorch's formulas in both frameworks"""

    optimizer: Literal["sgd", "adam", "adamw", "rmsprop"] = "sgd"
    """update rule"""
    learning_rate: LimitedRate = 0.01
    """learning rate per rank, see --lr-scaling"""
    momentum: Fraction = 0.9
    """momentum of sgd"""
    nesterov: bool = False
    """Nesterov momentum of sgd"""
    weight_decay: LimitedRate = 0.0
    """weight decay of all weights: an L2 term in the gradient (sgd, adam, rmsprop) or decoupled (adamw)"""
    beta1: Fraction = 0.9
    """decay of the first moment of adam and adamw"""
    beta2: Fraction = 0.999
    """decay of the second moment of adam and adamw"""
    alpha: Fraction = 0.99
    """decay of the mean squared gradient of rmsprop"""
    epsilon: Positive = 1e-8
    """term added to the square root in adam, adamw and rmsprop"""
    loss: Literal["cross_entropy", "mse"] = "cross_entropy"
    """loss function; mse is the mean over samples and outputs of (output - one-hot label) squared"""

    @property
    def slots(self) -> int:
        """Number of arrays that the rule keeps for each weight."""
        return {"sgd": int(self.momentum > 0), "adam": 2, "adamw": 2, "rmsprop": 1}[self.optimizer]


@dataclass(frozen=True)
class ScheduleConfig(Settings):
    """the learning rate over the run"""

    lr_scaling: Literal["linear", "sqrt", "none"] | None = None
    """factor of the learning rate: the number of ranks (times --backward-passes-per-step), its square root, or 1
    (None: linear; none with --adasum)"""
    warmup_epochs: NotNegative = 1.0
    """epochs in which the learning rate rises linearly from that of one rank to the scaled rate"""
    decay: Literal["none", "cosine", "step"] = "none"
    """after the warm-up, none: constant; cosine: half a cosine down to 0 at the last step; step: multiply by
    --decay-factor every --decay-epochs"""
    decay_epochs: Positive = 10.0
    """epochs between reductions of --decay step"""
    decay_factor: NotNegative = 0.1
    """factor of each reduction of --decay step"""


@dataclass(frozen=True)
class TrainingConfig(Settings):
    """length of the training, batches, evaluation, seed"""

    epochs: LimitedCountFromZero = 12
    """passes over the training samples; 0 evaluates only"""
    batch_size: Annotated[LimitedCount, NOTHING] = 64
    """images per backward pass and rank; the global batch size is this times the number of ranks, also with --shares"""
    eval_batch_size: Annotated[LimitedCount, SPEED] = 500
    """images per step and rank in validation and test"""
    seed: Annotated[CountFromZero, IN_RECORD] = 1
    """seed of the initial weights, the validation split, the sample order and dropout"""
    steps_per_epoch: Count | None = None
    """steps per epoch (None: all complete global batches)"""
    max_steps: Count | None = None
    """stop after this many steps in total"""
    validate_every: Count = 1
    """epochs between validations, if there are validation samples"""
    validation: Annotated[Literal["sharded", "replicated"], SPEED] = "sharded"
    """sharded: each rank evaluates its part of the validation samples; replicated: each rank evaluates all of them"""
    early_stop: Count | None = None
    """stop after this many validations in a row without a lower validation loss"""
    target_accuracy: Annotated[FiniteFloat, Field(gt=0, le=1)] | None = None
    """stop when the validation accuracy reaches this fraction, and record the time to reach it"""
    evaluate_first: bool = False
    """also evaluate the test samples before training"""
    start_weights: str | None = None
    """run folder, of either framework, whose final weights a new run of the same model starts from, without the
    optimizer state (None: weights drawn from the seed)"""
