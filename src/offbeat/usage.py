"""usage_sentence: a command or an option that does not exist, answered with what does."""

import difflib
from collections.abc import Mapping

import click


def usage_sentence(error: click.ClickException, commands: Mapping[str, click.Command]) -> str:
    """Click's own words in one line, with what to do where it names nothing."""
    sentence = " ".join(error.format_message().split())
    if isinstance(error, click.NoSuchOption):
        return f"{sentence.partition(' (')[0]} {_other_option(error, sentence, commands)}"
    if "No such command" not in sentence or "Did you mean" in sentence:
        return sentence
    near = difflib.get_close_matches(sentence.partition("'")[2].partition("'")[0], commands, n=1)
    return f"{sentence} Did you mean {near[0]!r}?" if near else f"{sentence} Choose among {', '.join(commands)}."


def _other_option(error: click.NoSuchOption, sentence: str, commands: Mapping[str, click.Command]) -> str:
    """The commands that have it, click's guess, or where to look."""
    owners = [name for name, own in commands.items() if any(error.option_name in each.opts for each in own.params)]
    if owners:
        return f"It is an option of: {', '.join(owners)}."
    if "Did you mean" in sentence:
        return sentence.partition(" (")[2].removesuffix(")")
    return f"See {'offbeat' if error.ctx is None else error.ctx.command_path} --help."
