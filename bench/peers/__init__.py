"""One module per library that the lab is compared with; each runs in a process of its own."""
