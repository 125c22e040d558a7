"""What packs the units: threads here, or a Ray cluster."""
