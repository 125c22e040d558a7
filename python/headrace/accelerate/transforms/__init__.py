"""The script's transforms, translated into headrace's."""
