"""The tf.keras trainer."""
