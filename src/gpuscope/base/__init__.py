"""What has nothing to do with GPUs: clock, errors, settings, limits, text formats, files, HTTP."""
