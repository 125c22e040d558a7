"""Take over a loader as a whole: recognise it, compile its transforms, and make all of its batches natively."""
