"""`headrace run`: replace the image loading of a PyTorch script where the replacement is provably equal.

`hook` decides for each DataLoader, `recognise` holds the rules, `translate` the transforms, `compile` and `iterator` the native
loading, `native_decode` the decode-only way, `check` the comparison of `--check`.
"""
