"""One question a file: `run(name, options)` measures, prints, and returns what goes to JSON."""
