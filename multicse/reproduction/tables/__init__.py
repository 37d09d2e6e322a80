"""Tables and figures of the papers as data."""
