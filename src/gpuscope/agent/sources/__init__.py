"""Where numbers come from on machines of every vendor: a package each."""
