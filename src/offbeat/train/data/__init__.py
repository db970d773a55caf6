"""Where samples come from: one file per source, each a function that returns `Parts`."""
