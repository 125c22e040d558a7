"""What the script's own modules say and hold: their text, their state, what they have replaced."""
