"""`python -m lockstep`."""

import sys

from lockstep.cli import main
from lockstep.system.process_defaults import end_with_parent

end_with_parent()
sys.exit(main())
