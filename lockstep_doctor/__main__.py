"""`python -m lockstep_doctor`: the subcommands of `lockstep doctor`."""

import sys


def run_doctor() -> int:
    """Runs the command line; its commands import Lockstep, which the modules here do not."""
    from lockstep.cli import main

    return main(["doctor", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(run_doctor())
