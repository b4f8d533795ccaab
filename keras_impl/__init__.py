"""The tf.keras trainer. Its programs import this first, to switch to the environment that has the framework."""

from common.utils.environments import hand_over

hand_over("keras")
