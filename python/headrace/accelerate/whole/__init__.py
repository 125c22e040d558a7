"""Recognise a loader, and take it over as a whole: compile its transforms, and make all of its batches natively."""
