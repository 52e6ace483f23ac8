"""Remote write: 1.0 is sent, 1.0 and 2.0 are received. Codecs, queue, sender, receiver."""
