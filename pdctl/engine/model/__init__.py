"""Models in plain torch: dense ones, mixtures of experts, latent attention, in every parallel shape."""
