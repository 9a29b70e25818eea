"""SGLang's flags, ports and start-up rules as rows with the releases they hold for."""
