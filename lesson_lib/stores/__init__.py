"""Where the three durable records are kept: one module or package per kind of database."""
