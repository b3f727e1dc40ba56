"""What lesson 11 needs: the patterns side by side, killed, metered, timed and drawn."""
