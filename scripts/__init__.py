"""Programs of the developers, which are not part of the package; README.md has a line for each."""
