"""Text that is safe to print: sizes, printable names, redaction, arguments."""
