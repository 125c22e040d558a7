"""A diagnosis in formats that other programs read: JSON, Perfetto, OpenMetrics, TensorBoard."""
