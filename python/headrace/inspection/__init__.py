"""Inspection of datasets, object stores and machines: inspect, verify, contact sheets, doctor."""
