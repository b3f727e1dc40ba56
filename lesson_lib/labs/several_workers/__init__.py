"""Several processes on one database: workers, their races, and what slows them down."""
