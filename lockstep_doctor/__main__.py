"""`python -m lockstep_doctor`: the subcommands of `lockstep doctor`."""

import sys

from lockstep.cli import main
from lockstep.system.process_defaults import end_with_parent

end_with_parent()
sys.exit(main(["doctor", *sys.argv[1:]]))
