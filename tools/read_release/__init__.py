"""Read one release of SGLang or of a router from its wheel, without installing it, into pdctl/engines/releases."""
