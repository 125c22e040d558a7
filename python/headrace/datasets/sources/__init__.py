"""One module for each kind of source: folders, archives, lists, object stores, pipes. `datasets.open` chooses among them."""
