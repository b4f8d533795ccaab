"""Display names of the frameworks."""

FRAMEWORK_LABELS = {"torch": "PyTorch", "keras": "Keras"}


def framework_label(framework: str) -> str:
    """Return the display name; frameworks of published results keep their own."""
    return FRAMEWORK_LABELS.get(framework, framework)
