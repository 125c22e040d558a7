"""The results pages: one module for each page, with `render(document) -> str`. A page is a function of its JSON document."""
