"""The one sentence with which a section refuses a value."""

from paceline.errors import ConfigError


def require(condition: bool, option: str, value: object, rule: str, remedy: str = "") -> None:
    """Raise the one sentence that names option, value, rule and remedy, unless `condition` holds."""
    if not condition:
        flag = option.replace("_", "-")
        raise ConfigError(f"--{flag} must {rule}, got {value!r}{'; ' + remedy if remedy else ''}")
