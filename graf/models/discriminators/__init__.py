"""What judges images: convolutions that learn from them alone, heads on a frozen network, both."""
