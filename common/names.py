"""Names that settings, strategies and frameworks have elsewhere, and ours, which alone are recorded."""

from typing import Any

from common.errors import UserError

OPTIONS_ELSEWHERE = {"lr": "learning_rate", "gradient_accumulation_steps": "backward_passes_per_step"}
_FRAMEWORKS = {"pytorch": "torch", "tensorflow": "keras", "tf": "keras"}
_VALUES_ELSEWHERE = {
    "framework": _FRAMEWORKS,
    "strategy": {"local-sgd": "averaging", "pipeline-parallel": "layers", "tensor-parallel": "split"},
}


def framework_here(name: str) -> str:
    """Return our name of a framework: a `type` of argparse's."""
    return _FRAMEWORKS.get(name.lower(), name)


def value_here(setting: str, value: Any) -> Any:
    """Return a value of a setting, or each of several, by our name."""
    if isinstance(value, list):
        return [value_here(setting, each) for each in value]
    return _VALUES_ELSEWHERE.get(setting, {}).get(value, value) if isinstance(value, str) else value


def settings_here(values: dict[str, Any], *, source: str) -> dict[str, Any]:
    """Return settings of one subject, such as a table of a recipe, by our names.

    Raises:
        UserError: a setting is there twice.
    """
    ours: dict[str, Any] = {}
    for name, value in values.items():
        own = OPTIONS_ELSEWHERE.get(name, name)
        if own in ours:
            raise UserError(f"two names of one setting in {source}. Received: {own} and {name}. Leave one of them out")
        ours[own] = value_here(own, value)
    return ours
