"""One module per kind of channel: builds the payload and sends it. Each is a `Sender`."""
