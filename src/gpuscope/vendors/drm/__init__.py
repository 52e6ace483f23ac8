"""What the kernel's drivers of several vendors have in common: who has a card open, and what is used."""
