"""SGLang's flags, ports and start-up rules as rows, each with the releases it holds for."""
