"""What several lessons share: showing, drawing, a trace, a clock, sessions in child processes."""
