"""`headrace run`: a PyTorch script's image loading, replaced by headrace's where that is provably the same job."""
