"""Code that several verbs share: output, types of numeric options, price options."""
