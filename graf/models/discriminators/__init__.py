"""Networks that judge images: convolutions that learn from them alone, heads on a frozen network, both."""
