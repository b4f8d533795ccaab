"""Names of the frameworks as people read them."""

FRAMEWORK_LABELS = {"torch": "PyTorch", "keras": "Keras"}


def framework_label(framework: str) -> str:
    """Return a framework's name for people; one that is not ours keeps its own."""
    return FRAMEWORK_LABELS.get(framework, framework)
