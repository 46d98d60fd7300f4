"""What must survive a restart, on disk: guaranteed jobs, their outcomes, dead letters, schedules, groups."""
