"""`cdcd completion`: the script that a shell evaluates."""

import click
from click.shell_completion import get_completion_class


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script for a shell.

    \b
    bash  eval "$(cdcd completion bash)"          in ~/.bashrc
    zsh   eval "$(cdcd completion zsh)"           in ~/.zshrc
    fish  cdcd completion fish | source           in ~/.config/fish/config.fish
    """  # noqa: D301  click wants the character, and not a backslash
    complete = get_completion_class(shell)
    assert complete is not None, f"click has no completion for {shell}"
    click.echo(complete(ctx.find_root().command, {}, "cdcd", "_CDCD_COMPLETE").source())
