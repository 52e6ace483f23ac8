"""AMD: the files of its kernel driver, errors, partitions."""
