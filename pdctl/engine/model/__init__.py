"""Dense Llama-family models in plain torch."""
