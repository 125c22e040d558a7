"""Prices of machines and spot capacity, from the dated table or live."""
