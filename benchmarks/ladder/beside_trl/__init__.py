"""The ladder's small tasks, learned by Lockstep and by TRL's trainers with the same settings."""
