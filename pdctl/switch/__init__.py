"""Role switch: an instance of a running fleet becomes a prefill or a decode without a restart."""
