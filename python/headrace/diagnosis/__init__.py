"""From a session to a diagnosis: measured quantities, rules, predicted fixes."""
