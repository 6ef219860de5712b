"""The check with which sections refuse a value."""

from paceline.errors import ConfigError


def require(condition: bool, option: str, value: object, rule: str, remedy: str = "") -> None:
    """Raise a ConfigError that names option, value, rule and remedy, unless `condition` holds."""
    if not condition:
        flag = option.replace("_", "-")
        raise ConfigError(f"--{flag} must {rule}, got {value!r}", remedies=[remedy] if remedy else [])
