"""One question a file: `run(options)` measures, prints a table and returns what goes to JSON."""
