"""Other libraries' GPU decoders, and the choice among them."""
