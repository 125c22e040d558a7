"""Translate torchvision's and timm's transforms into those of headrace."""
