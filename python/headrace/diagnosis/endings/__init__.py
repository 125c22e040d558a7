"""How the command ended. `end` decides; `victim` finds the process that was killed, and `memory_words` describes memory."""
