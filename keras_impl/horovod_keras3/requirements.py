"""Looks for what this package needs and no installer checks. What is missing is an ImportError of one line."""

OLDEST = (3, 12)  # of Keras: what TensorFlow 2.21 takes

try:
    import horovod.tensorflow  # noqa: F401
    import keras
except ImportError as error:
    raise ImportError(
        "horovod_keras3 needs Keras 3, TensorFlow and a Horovod that was built for it. "
        f"Received: {str(error).splitlines()[0]}. See its README.md for how to get Horovod"
    ) from None

_backend = keras.backend.backend()
if tuple(map(int, keras.__version__.split(".")[:2])) < OLDEST or _backend != "tensorflow":
    raise ImportError(
        f"horovod_keras3 needs Keras {OLDEST[0]}.{OLDEST[1]} or newer on TensorFlow. "
        f"Received: Keras {keras.__version__} on {_backend}. Install a newer one, or unset KERAS_BACKEND"
    )
