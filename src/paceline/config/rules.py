"""Refusal of an option's value."""

from paceline.errors import ConfigError


def refusal(option: str, value: object, rule: str, remedy: str = "") -> ConfigError:
    """Return the error that names option, value, rule and remedy."""
    flag = option.replace("_", "-")
    error = ConfigError(f"--{flag} must {rule}, got {value!r}", remedies=[remedy] if remedy else [])
    error.option, error.value, error.rule = option, value, rule
    return error


def require(condition: bool, option: str, value: object, rule: str, remedy: str = "") -> None:
    """Raise the `refusal` unless `condition` holds."""
    if not condition:
        raise refusal(option, value, rule, remedy)
