"""Intel: the files of its kernel drivers xe and i915, errors, advice."""
