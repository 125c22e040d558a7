"""The command line: `main` finds the verb, each verb is one module of this package, `output` is how they speak."""
