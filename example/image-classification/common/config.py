"""Flags from a file: ``--config run.json``, or YAML where PyYAML is installed."""

import json

from mxloop.errors import ArgumentError
from mxloop.optional import need
from mxloop.validation import did_you_mean, shown


def flags_in(path, parser):
    """Return what a file of settings says, as words of a command line.

    Parameters
    ----------
    path : str
        JSON, or YAML by the ending ``.yaml`` or ``.yml``: one object of flag to value, as
        ``{"lr": 0.1, "lr-step-epochs": [10, 15]}``.
    parser : argparse.ArgumentParser
        Whose flags they are; it checks their values afterwards.

    Raises
    ------
    ArgumentError
        If the file cannot be read, or names what is no flag.
    """
    settings = read(path)
    if not isinstance(settings, dict):
        raise ArgumentError(f'--config {shown(path)} holds no object; write {{"lr": 0.1}}')
    known = {text.lstrip("-") for text in parser._option_string_actions if text.startswith("--")}
    words = []
    for key, value in settings.items():
        flag = str(key).replace("_", "-")
        if flag not in known - {"config", "help"}:
            raise ArgumentError(
                f"--config {shown(path)}: {shown(repr(key))} is no flag of {parser.prog}; "
                f"{did_you_mean(flag, known)}"
            )
        words += as_words(flag, value)
    return words


def as_words(flag, value):
    """One flag of the command line; true is a flag without a value, null and false none."""
    if value is None or value is False:
        return []
    if isinstance(value, (list, tuple)):
        value = ",".join(str(part) for part in value)
    return [f"--{flag}"] if value is True else [f"--{flag}={value}"]


def read(path):
    """Return what a JSON or YAML file holds."""
    try:
        with open(path, encoding="utf-8") as stream:
            if path.endswith((".yaml", ".yml")):
                return read_yaml(stream, path)
            return json.load(stream)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ArgumentError(f"cannot read --config {shown(path)}: {shown(reason)}") from error


def read_yaml(stream, path):
    yaml = need("yaml", "yaml", f"--config {shown(path)}")
    try:
        return yaml.safe_load(stream)
    except yaml.YAMLError as error:
        raise ArgumentError(f"cannot read --config {shown(path)}: {shown(error)}") from error
