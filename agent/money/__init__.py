"""What calls of models cost, and what a provider's prompt cache bills for them."""
