"""A click command with an option behind `--`."""

import click
from plain import train


@click.command()
@click.option("--updates", default=60)
@click.argument("rest", nargs=-1)
def main(updates, rest):
    print("rest", rest)
    train(updates)


main()
