"""Exit codes of all commands, including the doctor's. docs/errors.md has the table for users."""

OK = 0
CRASH = 1
"""An error inside the program, or a worker, engine or disk that failed."""
INPUT = 2
"""The user's input cannot be used."""
INCONCLUSIVE = 3
"""Too few measurements for a verdict, or nothing was trained on."""
BROKEN = 4
"""A promise or bound is broken: sampler and learner differ, or `lockstep check` fails."""
OUT_OF_TIME = 75
"""`run.max_time_s` ended the run; the same command resumes it.

EX_TEMPFAIL of sysexits.h, "try again later".
"""
HUNG_UP = 129
INTERRUPTED = 130
UNREAD = 141
TERMINATED = 143
"""Killed by a signal, as shells number them: SIGHUP, Ctrl-C, SIGPIPE and SIGTERM.

SIGPIPE means that the reader of the output, such as `head`, has ended.
"""
